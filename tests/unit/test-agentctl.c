/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The pure parts of agentctl: what is printed of hostile text, times and sizes; tables and their JSON; the
 * command line; which verb and which run is meant; exit statuses. What goes over the bus is in
 * tests/bus/test_agentctl.py.
 */

#include <fcntl.h>
#include <locale.h>

#include "basic/string-util.h"
#include "exit-status.h"
#include "format.h"
#include "input.h"
#include "options.h"
#include "report.h"
#include "run-info.h"
#include "secret.h"
#include "table.h"
#include "verb.h"

static void check_escape(const char *s, size_t len, bool keep_lines, const char *expected) {
        _cleanup_free_ char *escaped = text_escape(s, len, keep_lines);

        assert(escaped);
        assert(streq(escaped, expected));
}

static void test_escape(void) {
        check_escape("plain", 5, false, "plain");
        check_escape("", 0, false, "");
        check_escape("a\tb\nc", 5, false, "a\\x09b\\x0ac");
        check_escape("a\tb\nc", 5, true, "a\tb\nc");
        check_escape("\033]0;title\a", 10, true, "\\x1b]0;title\\x07");
        check_escape("gr\xc3\xbc\xc3\x9f", 6, false, "gr\xc3\xbc\xc3\x9f");
        check_escape("\xc2\x9b" "31m", 5, true, "\\xc2\\x9b31m"); /* C1's CSI */
        check_escape("\xff\xc3", 2, false, "\\xff\\xc3");
        check_escape("\xc0\x80", 2, false, "\\xc0\\x80");         /* overlong */
        check_escape("\xed\xa0\x80", 3, false, "\\xed\\xa0\\x80"); /* surrogate */
        check_escape("\0", 1, true, "\\x00");
        check_escape("a\xe2\x80\xae" "txt.sh", 10, true, "a\\xe2\\x80\\xaetxt.sh"); /* right to left */
        check_escape("\xe2\x81\xa6x\xe2\x81\xa9\xd8\x9c", 9, false, "\\xe2\\x81\\xa6x\\xe2\\x81\\xa9\\xd8\\x9c");
        check_escape("\xe2\x80\xa8\xe2\x80\x8f", 6, true, "\\xe2\\x80\\xa8\\xe2\\x80\\x8f");
        check_escape("\xd7\xa9\xd7\x9c", 4, false, "\xd7\xa9\xd7\x9c"); /* letters of that direction are letters */
        check_escape("\xe2\x80\xa6\xe2\x80\x94", 6, false, "\xe2\x80\xa6\xe2\x80\x94");
}

/* The text is another one, the value is the same. */
static void test_escape_json(void) {
        static const char raw[] = "{\n\t\"a\xe2\x80\xae" "b\" : \"\xc2\x9b" "31m \xc3\xbc\"\n}";
        _cleanup_free_ char *escaped = text_escape_json(raw);
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *a = NULL, *b = NULL;

        assert(escaped && streq(escaped, "{\n\t\"a\\u202eb\" : \"\\u009b31m \xc3\xbc\"\n}"));
        assert(sd_json_parse(raw, 0, &a, NULL, NULL) >= 0 && sd_json_parse(escaped, 0, &b, NULL, NULL) >= 0);
        assert(sd_json_variant_equal(a, b));
}

static void test_text_check(void) {
        char *reason = NULL;

        assert(text_check("gr\xc3\xbcn", 5, &reason) == 0 && !reason);
        assert(text_check("ab\xff", 3, &reason) == 0 && strstr(reason, "byte 3 is 0xff"));
        reason = mfree(reason);
        assert(text_check("a\0b", 3, &reason) == 0 && strstr(reason, "NUL at byte 2"));
        reason = mfree(reason);

        assert(input_check("x", 1, "The input") == 0);
        assert(input_check("\x80", 1, "The input") < 0);
        {
                _cleanup_free_ char *big = malloc(INPUT_MAX + 1);

                assert(big);
                memset(big, 'x', INPUT_MAX + 1);
                assert(input_check(big, INPUT_MAX, "The input") == 0);
                assert(input_check(big, INPUT_MAX + 1, "The input") < 0);
        }
}

static void test_width(void) {
        assert(text_width("") == 0);
        assert(text_width("abc") == 3);
        assert(text_width("gr\xc3\xbcn") == 4);
        assert(text_width("\xff") == 1);
}

static void test_format(void) {
        char buf[FORMAT_MAX];

        assert(streq(format_span(0, buf), "0ms"));
        assert(streq(format_span(12 * USEC_PER_MSEC, buf), "12ms"));
        assert(streq(format_span(3214 * USEC_PER_MSEC, buf), "3.214s"));
        assert(streq(format_span(125 * USEC_PER_SEC, buf), "2min 5s"));
        assert(streq(format_span(3780 * USEC_PER_SEC, buf), "1h 3min"));
        assert(streq(format_span(90000 * USEC_PER_SEC, buf), "1d 1h"));
        assert(streq(format_size(0, buf), "0B"));
        assert(streq(format_size(1023, buf), "1023B"));
        assert(streq(format_size(1024, buf), "1.0K"));
        assert(streq(format_size(1024 * 1024 * 3 / 2, buf), "1.5M"));
        assert(streq(format_size(UINT64_MAX, buf), "16383.9P") || strlen(buf) < FORMAT_MAX);
        assert(streq(format_amount(999, buf), "999"));
        assert(streq(format_amount(12345, buf), "12.3k"));
        assert(streq(format_time(0, buf), "-"));
        assert(streq(format_time(UINT64_C(1767225600) * USEC_PER_SEC, buf), "2026-01-01 00:00:00"));
        assert(streq(format_time_short(UINT64_C(1767225600) * USEC_PER_SEC, buf), "Jan 01 00:00:00"));
        assert(streq(format_digest("sha256:0123456789abcdef0123", buf), "sha256:0123456789ab"));
        assert(streq(format_digest("", buf), ""));
}

static const Column columns[] = {
        { "NAME", "name", CELL_STRING },   { "SIZE", "size", CELL_SIZE },   { NULL, "path", CELL_STRING },
        { "WHEN", "when_usec", CELL_TIME }, { "TOOK", "took_usec", CELL_SPAN }, { "HEAD", "head", CELL_BOOL },
};

static void add_row(Table *t, const char *name, uint64_t size, const char *path, uint64_t when, uint64_t took,
                    bool head) {
        assert(table_add_string(t, name) >= 0);
        assert(table_add_number(t, size) >= 0);
        assert(table_add_string(t, path) >= 0);
        assert(table_add_number(t, when) >= 0);
        assert(table_add_number(t, took) >= 0);
        assert(table_add_number(t, head) >= 0);
}

static void check_print(Table *t, bool legend, const char *expected) {
        _cleanup_free_ char *text = NULL;
        size_t size;
        FILE *f = open_memstream(&text, &size);

        assert(f);
        assert(table_print(t, f, legend) >= 0);
        fclose(f);
        if (!streq(text, expected))
                fprintf(stderr, "got:\n%s\nexpected:\n%s\n", text, expected);
        assert(streq(text, expected));
}

static void test_table(void) {
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL, *empty = NULL;
        _cleanup_(table_freep) Table *t = table_new(columns, ELEMENTSOF(columns));
        _cleanup_free_ char *text = NULL, *empty_text = NULL;

        assert(t);
        assert(table_to_json(t, &empty) >= 0);
        assert(sd_json_variant_format(empty, 0, &empty_text) >= 0);
        assert(streq(empty_text, "[]"));

        add_row(t, "gr\xc3\xbcn", 2048, "/a", 0, USEC_INFINITY, false);
        add_row(t, "", 1, "", UINT64_C(1767225600) * USEC_PER_SEC, 1500000, true);
        add_row(t, "bad\033[2J", 17, "/c", 0, 0, false);
        assert(table_rows(t) == 3);

        check_print(t, true,
                    "NAME       SIZE WHEN                TOOK   HEAD\n"
                    "gr\xc3\xbcn       2.0K -                   -      \n"
                    "-            1B 2026-01-01 00:00:00 1.500s yes\n"
                    "bad\\x1b[2J  17B -                   0ms    \n");
        check_print(t, false,
                    "gr\xc3\xbcn       2.0K -                   -      \n"
                    "-            1B 2026-01-01 00:00:00 1.500s yes\n"
                    "bad\\x1b[2J  17B -                   0ms    \n");

        assert(table_to_json(t, &v) >= 0);
        assert(sd_json_variant_format(v, 0, &text) >= 0);
        assert(streq(text,
                     "[{\"name\":\"gr\xc3\xbcn\",\"size\":2048,\"path\":\"/a\",\"when_usec\":null,\"took_usec\":null,"
                     "\"head\":false},"
                     "{\"name\":null,\"size\":1,\"path\":null,\"when_usec\":1767225600000000,\"took_usec\":1500000,"
                     "\"head\":true},"
                     "{\"name\":\"bad\\u001b[2J\",\"size\":17,\"path\":\"/c\",\"when_usec\":null,\"took_usec\":0,"
                     "\"head\":false}]"));
}

/* Many rows, so that the array of cells grows. */
static void test_table_grows(void) {
        _cleanup_(table_freep) Table *t = table_new(columns, ELEMENTSOF(columns));

        assert(t);
        for (unsigned i = 0; i < 1000; i++)
                add_row(t, "x", i, "/", 0, 0, false);
        assert(table_rows(t) == 1000);
}

static int parse(Options *o, int *first, const char *const *args) {
        static char *argv[16];
        int argc = 1;

        *o = OPTIONS_DEFAULT;
        argv[0] = (char *) "agentctl";
        for (; args[argc - 1]; argc++)
                argv[argc] = (char *) args[argc - 1];
        argv[argc] = NULL;
        return options_parse(o, argc, argv, first);
}

#define PARSE(...) parse(&o, &first, (const char *const[]) { __VA_ARGS__, NULL })

static void test_options(void) {
        Options o;
        int first;

        assert(PARSE("runs") == 0);
        assert(first == 1 && o.given == 0 && o.json == JSON_OFF && o.pager && o.legend && o.ask_password &&
               o.lines == 100);

        /* Anywhere, before and behind the verb */
        assert(PARSE("-q", "run", "--wait", "analyst", "--input", "hi", "-t", "10min") == 0);
        assert(first == 7);
        assert(option_given(&o, OPTION_QUIET) && option_given(&o, OPTION_WAIT) && !option_given(&o, OPTION_KEEP));
        assert(streq(o.input, "hi") && o.timeout_usec == 600 * USEC_PER_SEC);

        assert(PARSE("runs", "--json") == 0 && o.json == JSON_PRETTY);
        assert(PARSE("runs", "--json=short") == 0 && o.json == JSON_SHORT);
        assert(PARSE("runs", "--json=off") == 0 && o.json == JSON_OFF);
        assert(PARSE("runs", "--json=yaml") == USAGE_ERROR);
        assert(PARSE("runs", "-j") == 0 && o.json != JSON_OFF);
        assert(PARSE("runs", "-n", "7") == 0 && o.lines == 7);
        assert(PARSE("runs", "-n", "all") == 0 && o.lines == UINT64_MAX);
        assert(PARSE("runs", "-n", "0") == USAGE_ERROR);
        assert(PARSE("runs", "-n", "-3") == USAGE_ERROR);
        assert(PARSE("runs", "-n", "7x") == USAGE_ERROR);
        assert(PARSE("runs", "--state=running") == 0 && streq(o.state, "running"));
        assert(PARSE("runs", "--state=jumping") == USAGE_ERROR);
        assert(PARSE("runs", "--result=oom-kill") == 0 && streq(o.result, "oom-kill"));
        assert(PARSE("run", "a", "--priority=-5") == 0 && o.priority == -5);
        assert(PARSE("run", "a", "--priority", "-100") == 0 && o.priority == -100);
        assert(PARSE("run", "a", "--priority=101") == USAGE_ERROR);
        assert(PARSE("run", "a", "--priority=--5") == USAGE_ERROR);
        assert(PARSE("run", "a", "--timeout=soon") == USAGE_ERROR);
        assert(PARSE("run", "a", "--timeout=0") == USAGE_ERROR);
        assert(PARSE("run", "a", "--nonsense") == USAGE_ERROR);
        assert(PARSE("run", "a", "--input") == USAGE_ERROR);

        assert(PARSE("run", "a", "-l", "k=v", "--label=x=y=z", "--label", "empty=") == 0);
        assert(strv_length(o.labels) == 3 && streq(o.labels[1], "x=y=z"));
        options_done(&o);
        assert(PARSE("run", "a", "--label=novalue") == USAGE_ERROR);
        assert(PARSE("run", "a", "--label==v") == USAGE_ERROR);

        /* "--" ends the options, "-" is a word */
        assert(PARSE("image", "import", "x", "-") == 0 && first == 1);
        assert(PARSE("--", "--wait") == 0 && first == 2 && o.given == 0);
}

static const Verb *find(int *words, const char *a, const char *b) {
        char *argv[] = { (char *) a, (char *) b, NULL };
        return verb_find(verbs, b ? 2 : a ? 1 : 0, argv, words);
}

static void test_verbs(void) {
        Options o = OPTIONS_DEFAULT;
        const Verb *v;
        int words;

        v = find(&words, "run", "analyst");
        assert(v && streq(v->name, "run") && words == 1);
        v = find(&words, "runs", NULL);
        assert(v && streq(v->name, "runs"));
        v = find(&words, "agent", "list");
        assert(v && streq(v->name, "agent list") && words == 2);
        assert(!find(&words, "agent", NULL));
        assert(!find(&words, "agent", "lis"));
        assert(!find(&words, "ru", NULL));
        assert(!find(&words, NULL, NULL));

        v = find(&words, "artifact", "x");
        assert(verb_check(v, &o, 2) == 0);
        assert(verb_check(v, &o, 1) == USAGE_ERROR);
        assert(verb_check(v, &o, 3) == USAGE_ERROR);
        o.given = OPTION_BIT(OPTION_JSON) | OPTION_BIT(OPTION_OUTPUT);
        assert(verb_check(v, &o, 2) == 0);
        o.given |= OPTION_BIT(OPTION_WAIT);
        assert(verb_check(v, &o, 2) == USAGE_ERROR);

        for (v = verbs; v->name; v++) {
                assert(v->run && v->summary && v->min_args <= v->max_args);
                assert((v->min_args == 0) == (isempty(v->args) || v->args[0] == '['));
        }
}

static void test_run_id_match(void) {
        char *ids[] = {
                (char *) "0198a0000001aaaaaaaaaaaaaaaaaaa1",
                (char *) "0198a0000002bbbbbbbbbbbbbbbbbbb2",
                (char *) "0198a0000002ccccccccccccccccccc3",
        };
        size_t i = 99;

        assert(run_id_match(ids, 3, "0198a0000001", &i) == 0 && i == 0);
        assert(run_id_match(ids, 3, "0198", &i) == -ENOTUNIQ);
        assert(run_id_match(ids, 3, "0198a0000002c", &i) == 0 && i == 2);
        assert(run_id_match(ids, 3, "bbb2", &i) == 0 && i == 1);
        assert(run_id_match(ids, 3, "dddd", &i) == -ENOENT);
        assert(run_id_match(ids, 3, ids[1], &i) == 0 && i == 1);
        assert(run_id_match(NULL, 0, "0198", &i) == -ENOENT);
}

static void test_exit_status(void) {
        assert(exit_status_from_run_result("success") == 0);
        assert(exit_status_from_run_result("failed") == 1);
        assert(exit_status_from_run_result("exit-code") == 10);
        assert(exit_status_from_run_result("signal") == 11);
        assert(exit_status_from_run_result("timeout") == 12);
        assert(exit_status_from_run_result("oom-kill") == 13);
        assert(exit_status_from_run_result("canceled") == 14);
        assert(exit_status_from_run_result("out-of-credit") == 15);
        assert(exit_status_from_run_result("sandbox-failed") == 16);
        assert(exit_status_from_run_result("lost") == 17);
        assert(exit_status_from_run_result("something new") == 3);
        assert(exit_status_from_run_result("") == 3);
        assert(exit_status_from_run_result(NULL) == 3);
        assert(exit_status_from_operation_result("done") == 0);
        assert(exit_status_from_operation_result("failed") == 1);
        assert(exit_status_from_operation_result("canceled") == 14);
        assert(exit_status_from_operation_result("running") == 3);
}

/* Feeds SIZE bytes to secret_read() by a file; returns what comes out of the pipe, or its error. */
static int check_secret(const void *data, size_t size, const char *expected, size_t expected_size) {
        _cleanup_close_ int fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600), out = -EBADF;
        _cleanup_free_ char *buf = malloc(SECRET_MAX + 1);
        ssize_t n;
        int r;

        assert(fd >= 0 && buf);
        assert(write(fd, data, size) == (ssize_t) size);
        assert(lseek(fd, 0, SEEK_SET) == 0);
        r = secret_read(fd, "", &out);
        if (r < 0)
                return r;
        n = read(out, buf, SECRET_MAX + 1);
        assert(n == (ssize_t) expected_size && memcmp(buf, expected, expected_size) == 0);
        assert(read(out, buf, 1) == 0); /* and it ends */
        return 0;
}

static void test_secret(void) {
        _cleanup_free_ char *big = malloc(SECRET_MAX + 2);
        int out = -EBADF;

        assert(check_secret("s3cret", 6, "s3cret", 6) == 0);
        assert(check_secret("s3cret\n", 7, "s3cret", 6) == 0);
        assert(check_secret("s3cret\r\n", 8, "s3cret", 6) == 0);
        assert(check_secret("two\nlines\n\n", 11, "two\nlines\n", 10) == 0);
        assert(check_secret("", 0, "", 0) < 0);
        assert(check_secret("\n", 1, "", 0) < 0);

        assert(big);
        memset(big, 'k', SECRET_MAX + 2);
        assert(check_secret(big, SECRET_MAX, big, SECRET_MAX) == 0);
        assert(check_secret(big, SECRET_MAX + 1, "", 0) < 0);
        big[SECRET_MAX] = '\n';
        assert(check_secret(big, SECRET_MAX + 1, big, SECRET_MAX) == 0);
        assert(secret_read(987, "", &out) < 0 && out == -EBADF);
}

int main(void) {
        assert(setenv("TZ", "UTC", true) == 0);
        (void) setlocale(LC_ALL, "C.UTF-8");

        test_escape();
        test_escape_json();
        test_text_check();
        test_width();
        test_format();
        test_table();
        test_table_grows();
        test_options();
        test_verbs();
        test_run_id_match();
        test_exit_status();
        test_secret();
        return 0;
}
