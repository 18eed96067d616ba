/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The vocabulary of the tree: strings and numbers from outside are read strictly (one spelling a value, no rounding, no
 * wrap-around), files are written whole or not at all, and removal does not leave the tree it was given.
 */
#include <sys/resource.h>
#include <sched.h>
#include <sys/mount.h>

#include "basic/config.h"
#include "basic/digest.h"
#include "basic/fs-util.h"
#include "basic/json-util.h"
#include "basic/log.h"
#include "basic/name-util.h"
#include "basic/string-util.h"
#include "basic/strmap.h"

static char *dir;

static void test_strings(void) {
        _cleanup_strv_free_ char **l = NULL, **copy = NULL;
        _cleanup_free_ char *s = NULL;

        assert(strv_length(NULL) == 0 && !strv_contains(NULL, "a"));
        assert(strv_extend(&l, "a") == 0 && strv_extend(&l, "") == 0);
        assert(strv_length(l) == 2 && strv_contains(l, "") && !strv_contains(l, "b"));
        assert(strv_copy(l, &copy) == 0 && strv_length(copy) == 2 && copy[0] != l[0]);
        assert(free_and_strdup(&s, "x") == 0 && streq(s, "x") && free_and_strdup(&s, NULL) == 0 && !s);
        assert(streq(startswith("abc", "ab"), "c") && !startswith("a", "ab") && endswith("abc", "bc") &&
               !endswith("c", "bc"));
        assert(string_has_cc("a\nb") && string_has_cc("\x7f") && !string_has_cc("a b\xc3\xa4"));
        assert(string_has_cc("\xc2\x9b" "31m") && string_has_cc("\xc2\x80") && !string_has_cc("\xc2\xa0\xc2"));
}

static void test_utf8(void) {
        static const struct {
                const char *s;
                size_t len;
                bool valid;
        } t[] = {
                { "", 0, true }, { "a", 1, true }, { "\xc3\xa4", 2, true }, { "\xe2\x82\xac", 3, true },
                { "\xf0\x9f\x98\x80", 4, true }, { "\xf4\x8f\xbf\xbf", 4, true },
                { "\xc3", 1, false }, { "\xa4", 1, false }, { "\xc0\x80", 2, false }, /* another spelling of NUL */
                { "\xc1\xbf", 2, false }, { "\xe0\x80\xaf", 3, false }, { "\xf0\x80\x80\xaf", 4, false },
                { "\xed\xa0\x80", 3, false }, { "\xf4\x90\x80\x80", 4, false }, { "\xf8\x88\x80\x80\x80", 5, false },
                { "\xff", 1, false }, { "\xe2\x82", 2, false }, { "\xe2\x82\xac", 2, false }, { "\xc3\x28", 2, false },
        };

        for (size_t i = 0; i < ELEMENTSOF(t); i++)
                assert(utf8_is_valid(t[i].s, t[i].len) == t[i].valid);
}

typedef int (*Parser)(const char *s, uint64_t *ret);

static void check(Parser f, const char *s, int expected, uint64_t value) {
        uint64_t v = 4711;
        int r = f(s, &v);

        if (r != expected || v != (r < 0 ? 4711 : value)) {
                fprintf(stderr, "\"%s\": %d, %" PRIu64 "\n", s, r, v);
                assert(false);
        }
}

static void test_parse(void) {
        static const char *const no_numbers[] = { "", " ", " 1", "1 ", "+1", "-1", "0x1", "1.5", "1e3", "a", "1a",
                "\xc2\xb2" };

        for (size_t i = 0; i < ELEMENTSOF(no_numbers); i++) {
                check(parse_uint64, no_numbers[i], -EINVAL, 0);
                check(parse_size, no_numbers[i], -EINVAL, 0);
        }
        check(parse_uint64, "0", 0, 0);
        check(parse_uint64, "007", 0, 7);
        check(parse_uint64, "18446744073709551615", 0, UINT64_MAX);
        check(parse_uint64, "18446744073709551616", -ERANGE, 0);
        check(parse_uint64, "99999999999999999999", -ERANGE, 0);

        check(parse_size, "1K", 0, 1024);
        check(parse_size, "512M", 0, UINT64_C(512) << 20);
        check(parse_size, "3G", 0, UINT64_C(3) << 30);
        check(parse_size, "2T", 0, UINT64_C(2) << 40);
        check(parse_size, "16777215T", 0, UINT64_C(16777215) << 40);
        check(parse_size, "16777216T", -ERANGE, 0);
        check(parse_size, "K", -EINVAL, 0);
        check(parse_size, "1KK", -EINVAL, 0);
        check(parse_size, "infinity", -EINVAL, 0);

        check(parse_timespan, "90", 0, 90 * USEC_PER_SEC);
        check(parse_timespan, "90s", 0, 90 * USEC_PER_SEC);
        check(parse_timespan, "10min", 0, 600 * USEC_PER_SEC);
        check(parse_timespan, "1h 30min", 0, 5400 * USEC_PER_SEC);
        check(parse_timespan, "1h30min", 0, 5400 * USEC_PER_SEC);
        check(parse_timespan, "500ms", 0, 500000);
        check(parse_timespan, "0", 0, 0);
        check(parse_timespan, "2d", 0, 172800 * USEC_PER_SEC);
        check(parse_timespan, "1day 1hour 1minute 1second", 0, 90061 * USEC_PER_SEC);
        check(parse_timespan, "2weeks", 0, 14 * 86400 * USEC_PER_SEC);
        check(parse_timespan, "", -EINVAL, 0);
        check(parse_timespan, "  ", -EINVAL, 0);
        check(parse_timespan, "min", -EINVAL, 0);
        check(parse_timespan, "-1s", -EINVAL, 0);
        check(parse_timespan, "1x", -EINVAL, 0);
        check(parse_timespan, "1.5h", -EINVAL, 0);
        check(parse_timespan, "infinity", -EINVAL, 0);
        check(parse_timespan, "18446744073709551615s", -ERANGE, 0);
        check(parse_timespan, "18446744073709551615us 1us", -ERANGE, 0);
        check(parse_timespan, "99999999999999999999us", -ERANGE, 0);

        assert(parse_boolean("yes") == 1 && parse_boolean("FALSE") == 0 && parse_boolean("") == -EINVAL);
        assert(parse_boolean(NULL) == -EINVAL && parse_boolean("2") == -EINVAL);
}

static void test_encoding(void) {
        static const char *const bad_url[] = { "A", "AA=", "AA==", "A+", "A/", "A ", "AB", "AAB", "A\n", "AAAAA",
                "\xc3\xa4" };
        static const char *const bad_std[] = { "AA", "AB==", "AAB=", "====", "A===", "AA=A", "A-==", "A_==", "AAA\n" };
        uint8_t bytes[256], back[4];
        void *out = NULL;
        size_t size;

        for (size_t i = 0; i < sizeof bytes; i++)
                bytes[i] = (uint8_t) (i * 151);
        for (size_t n = 0; n <= sizeof bytes; n++) {
                _cleanup_free_ char *url = base64url_encode(bytes, n), *std = base64_encode(bytes, n);
                _cleanup_free_ void *a = NULL, *b = NULL;

                assert(url && std && strlen(std) % 4 == 0 && !strpbrk(url, "+/="));
                assert(base64url_decode(url, strlen(url), &a, &size) == 0 && size == n && memcmp(a, bytes, n) == 0);
                assert(base64_decode(std, strlen(std), &b, &size) == 0 && size == n && memcmp(b, bytes, n) == 0);
        }
        /* One spelling a value: no padding, no stray bits, no other alphabet, no white space. */
        for (size_t i = 0; i < ELEMENTSOF(bad_url); i++)
                assert(base64url_decode(bad_url[i], strlen(bad_url[i]), &out, &size) == -EINVAL);
        for (size_t i = 0; i < ELEMENTSOF(bad_std); i++)
                assert(base64_decode(bad_std[i], strlen(bad_std[i]), &out, &size) == -EINVAL);
        assert(base64url_decode("AA\0A", 4, &out, &size) == -EINVAL && !out);

        _cleanup_free_ char *hex = hex_encode("\x00\xff\x10\xab", 4);
        assert(streq(hex, "00ff10ab") && hex_decode(hex, 8, back, 4) == 0 && memcmp(back, "\x00\xff\x10\xab", 4) == 0);
        assert(hex_decode("00FF10AB", 8, back, 4) == -EINVAL && hex_decode("00ff10a", 7, back, 4) == -EINVAL);
        assert(hex_decode("00ff10a\0", 8, back, 4) == -EINVAL && hex_decode("00ff10abcd", 10, back, 4) == -EINVAL);
}

static void test_names(void) {
        static const char *const good[] = { "a", "a1", "market-data", "x.y_z", "0", "a_" };
        static const char *const bad[] = { "", ".", "..", "a..b", "-a", "a-", "a.", "_a", "A", "a/b", "a b", "a\n",
                "\xc3\xa4", "a@" };
        char id[RUN_ID_LEN + 1], next[RUN_ID_LEN + 1], long_name[300];

        memset(long_name, 'a', sizeof long_name);
        long_name[63] = 0;
        for (size_t i = 0; i < ELEMENTSOF(good); i++)
                assert(object_name_is_valid(good[i]));
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                assert(!object_name_is_valid(bad[i]));
        assert(object_name_is_valid(long_name) && !object_name_is_valid(NULL));
        long_name[63] = 'a';
        long_name[64] = 0;
        assert(!object_name_is_valid(long_name));
        long_name[64] = 'a';
        long_name[256] = 0;
        assert(!object_name_is_valid(long_name) && !token_name_is_valid(long_name) &&
               !artifact_name_is_valid(long_name) && !runner_path_is_valid(long_name));
        long_name[255] = 0;
        assert(artifact_name_is_valid(long_name));
        assert(token_name_is_valid("A.b_c:d-9") && !token_name_is_valid("") && !token_name_is_valid("a b"));
        assert(!token_name_is_valid("a/b") && !token_name_is_valid("\xc3\xa4") && !token_name_is_valid("a\n"));
        assert(runner_path_is_valid("main.cjs") && runner_path_is_valid("lib/a b/x"));
        assert(!runner_path_is_valid("") && !runner_path_is_valid("/x") && !runner_path_is_valid("x/") &&
               !runner_path_is_valid("x//y") && !runner_path_is_valid("../x") && !runner_path_is_valid("x/.y") &&
               !runner_path_is_valid("x\ny") && !runner_path_is_valid("\xff"));
        assert(artifact_name_is_valid("Bericht \xc3\xa4.png") && !artifact_name_is_valid(".x"));
        assert(!artifact_name_is_valid("a/b") && !artifact_name_is_valid("..") && !artifact_name_is_valid("a\nb") &&
               !artifact_name_is_valid("") && !artifact_name_is_valid("\xff"));

        assert(run_id_new(id) == 0 && run_id_new(next) == 0 && run_id_is_valid(id) && !streq(id, next));
        assert(memcmp(id, next, 11) <= 0); /* by age */
        id[3] = 'A';
        assert(!run_id_is_valid(id) && !run_id_is_valid("") && !run_id_is_valid(NULL));
        assert(!run_id_is_valid("0000000000000000000000000000000") &&
               !run_id_is_valid("000000000000000000000000000000000"));
        assert(digest_is_valid("sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
        assert(!digest_is_valid("sha256:E3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
        assert(!digest_is_valid("sha256:../../x") && !digest_is_valid(NULL));
}

/* ---- JSON ---- */

static void refused(const char *text, size_t size, const char *part) {
        /* Of its exact size, so that a sanitizer sees a read beyond its end. */
        _cleanup_free_ char *exact = malloc(size > 0 ? size : 1), *error = NULL;
        sd_json_variant *v = NULL;

        assert(exact);
        memcpy(exact, text, size);
        if (json_parse(exact, size, &v, &error) != -EINVAL || v || !error || !strstr(error, part)) {
                fprintf(stderr, "%s: %s\n", text, strempty(error));
                assert(false);
        }
        assert(json_parse(exact, size, &v, NULL) == -EINVAL);
}

#define REFUSED(literal, part) refused(literal, sizeof(literal) - 1, part)

static void test_json(void) {
        static const char *const malformed[] = {
                "{", "}", "[1,]", "{\"a\":}", "{\"a\" 1}", "{'a':1}", "{a:1}", "{} {}", "01", "+1", ".5", "1.", "nan",
                "tru",
                "\"a", "\"\\x41\"", "\"\\ud800\"", "\"\\u0000\"", "{\"a\\u0000\":1}", "\"\t\"", "// x\n1",
                "\xef\xbb\xbf{}",
        };
        static const struct {
                const char *text, *canonical;
        } forms[] = {
                { "{\"b\":1,\"a\":{\"d\":[],\"c\":{}}}", "{\"a\":{\"c\":{},\"d\":[]},\"b\":1}" },
                { " [ 1 , 2.50 , -3 , true , null ] ", "[1,2.5,-3,true,null]" },
                { "18446744073709551615", "18446744073709551615" },
                { "-9223372036854775808", "-9223372036854775808" },
                { "2.53", "2.53" }, { "1.0", "1" }, { "1e3", "1000" }, { "0.1", "0.1" }, { "1e-7", "1e-07" },
                { "\"\\u00e4\\/\\n\"", "\"\xc3\xa4/\\n\"" },
        };
        _cleanup_json_ sd_json_variant *v = NULL;
        char deep[300];

        for (size_t i = 0; i < ELEMENTSOF(malformed); i++)
                refused(malformed[i], strlen(malformed[i]), "line 1");
        REFUSED("{\n\n  \"a\": x}", "line 3, column");
        REFUSED("", "empty");
        REFUSED(" \n", "empty");
        REFUSED("{}\0", "NUL");
        REFUSED("\"\xff\"", "UTF-8");
        REFUSED("{\"a\":1,\n\"b\":2,\n\"a\":3}", "line 3: a: appears twice");
        REFUSED("[{\"x\":{\"a\":1,\"a\":1}}]", "a: appears twice");
        /* What is quoted cannot drive a terminal. */
        REFUSED("{\"\\u001b[31m\":1,\"\\u001b[31m\":1}", "?[31m: appears twice");

        memset(deep, '[', 65);
        memset(deep + 65, ']', 65);
        refused(deep, 130, "64 levels");
        assert(json_parse(deep + 1, 128, &v, NULL) == 0);

        for (size_t i = 0; i < ELEMENTSOF(forms); i++) {
                _cleanup_json_ sd_json_variant *a = NULL, *b = NULL;
                _cleanup_free_ char *text = NULL, *again = NULL;

                assert(json_parse(forms[i].text, strlen(forms[i].text), &a, NULL) == 0);
                assert(json_format_canonical(a, &text) == 0);
                if (!streq(text, forms[i].canonical)) {
                        fprintf(stderr, "%s → %s\n", forms[i].text, text);
                        assert(false);
                }
                assert(json_parse(text, strlen(text), &b, NULL) == 0 && json_format_canonical(b, &again) == 0);
                assert(streq(text, again));
        }
}

typedef struct Inner {
        uint64_t size;
} Inner;

typedef struct Outer {
        char *name;
        char **list;
        bool flag;
        uint64_t number, size, time;
        Inner inner;
} Outer;

static int read_inner(sd_json_variant *v, void *field, char **ret_reason) {
        static const JsonField table[] = {
                { "size", _SD_JSON_VARIANT_TYPE_INVALID, json_field_size, offsetof(Inner, size), true },
                {},
        };

        return json_read_object(v, "inner", table, field, ret_reason);
}

static int read_outer(const char *text, Outer *o, char **ret_error) {
        static const JsonField table[] = {
                { "name", SD_JSON_VARIANT_STRING, json_field_string, offsetof(Outer, name), true },
                { "list", _SD_JSON_VARIANT_TYPE_INVALID, json_field_strv, offsetof(Outer, list), false },
                { "flag", SD_JSON_VARIANT_BOOLEAN, json_field_bool, offsetof(Outer, flag), false },
                { "number", _SD_JSON_VARIANT_TYPE_INVALID, json_field_uint64, offsetof(Outer, number), false },
                { "size", _SD_JSON_VARIANT_TYPE_INVALID, json_field_size, offsetof(Outer, size), false },
                { "time", _SD_JSON_VARIANT_TYPE_INVALID, json_field_timespan, offsetof(Outer, time), false },
                { "inner", _SD_JSON_VARIANT_TYPE_INVALID, read_inner, offsetof(Outer, inner), false },
                {},
        };
        _cleanup_json_ sd_json_variant *v = NULL;
        int r;

        r = json_parse(text, strlen(text), &v, ret_error);
        return r < 0 ? r : json_read_object(v, "", table, o, ret_error);
}

static void test_json_object(void) {
        static const struct {
                const char *text, *error;
        } bad[] = {
                { "{}", "line 1: name: is missing" },
                { "[]", "line 1: must be an object" },
                { "{\"name\":\"a\",\n\"x\":1}", "line 2: x: unknown key" },
                { "{\"name\":\n1}", "line 1: name: must be a string" },
                { "{\"name\":\"a\",\n\n\"list\":[1]}", "line 3: list: must be an array of strings" },
                { "{\"name\":\"a\",\"number\":-1}", "line 1: number: must be a whole number, not negative" },
                { "{\"name\":\"a\",\"number\":1.0}", "line 1: number: must be a whole number, not negative" },
                { "{\"name\":\"a\",\"number\":1e3}", "line 1: number: must be a whole number, not negative" },
                { "{\"name\":\"a\",\"number\":18446744073709551616}",
                "line 1: number: must be a whole number, not negative" },
                { "{\"name\":\"a\",\"size\":\"1X\"}",
                "line 1: size: must be a size such as \"512M\" or a number of bytes" },
                { "{\"name\":\"a\",\"size\":1e3}",
                "line 1: size: must be a size such as \"512M\" or a number of bytes" },
                { "{\"name\":\"a\",\"time\":18446744073709551615}",
                  "line 1: time: must be a time span such as \"10min\" or a number of seconds" },
                { "{\"name\":\"a\",\"flag\":1}", "line 1: flag: must be true or false" },
                { "{\"name\":\"a\",\n\"inner\":{\n\"sise\":1}}", "line 3: inner.sise: unknown key" },
                { "{\"name\":\"a\",\n\"inner\":{}}", "line 2: inner.size: is missing" },
                { "{\"name\":\"a\",\"inner\":1}", "line 1: inner: must be an object" },
                { "{\"name\":\"a\",\n\"\\u0007\\n\":1}", "line 2: ??: unknown key" },
        };

        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                _cleanup_free_ char *error = NULL;
                Outer o = {};

                if (read_outer(bad[i].text, &o, &error) != -EINVAL || !streq_ptr(error, bad[i].error)) {
                        fprintf(stderr, "%s\n  %s\n", bad[i].text, strempty(error));
                        assert(false);
                }
                free(o.name);
                strv_free(o.list);
        }

        _cleanup_free_ char *error = NULL;
        Outer o = {};
        assert(read_outer("{\"name\":\"a\",\"list\":[\"x\",\"\"],\"flag\":true,\"number\":18446744073709551615,"
                          "\"size\":\"2K\",\"time\":90,\"inner\":{\"size\":7}}", &o, &error) == 0);
        assert(!error && streq(o.name, "a") && strv_length(o.list) == 2 && o.flag && o.number == UINT64_MAX);
        assert(o.size == 2048 && o.time == 90 * USEC_PER_SEC && o.inner.size == 7);
        free(o.name);
        strv_free(o.list);
}

/* ---- files, digests, maps ---- */

/* Deeper than there are fds, with more than one branch; names of our own are taken. */
static void remove_deep_tree(int d) {
        struct rlimit old, low = { 200, 200 };
        int top, fd, next;

        assert(mkdirat(d, "deep", 0700) == 0);
        top = openat(d, "deep", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert(top >= 0 && mkdirat(top, ".deep-0", 0700) == 0 && mkdirat(top, ".deep-1", 0700) == 0);
        fd = dup(top);
        for (unsigned i = 0; i < 3000; i++) {
                assert(mkdirat(fd, "a", 0700) == 0 && mkdirat(fd, "b", 0700) == 0 && symlinkat("/", fd, "l") == 0);
                next = openat(fd, i % 2 ? "a" : "b", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                assert(next >= 0);
                close(fd);
                fd = next;
        }
        close(fd);
        close(top);
        assert(getrlimit(RLIMIT_NOFILE, &old) == 0);
        low.rlim_max = old.rlim_max;
        assert(setrlimit(RLIMIT_NOFILE, &low) == 0);
        assert(rm_rf_at(d, "deep") == 0 && faccessat(d, "deep", F_OK, AT_SYMLINK_NOFOLLOW) < 0);
        assert(setrlimit(RLIMIT_NOFILE, &old) == 0);
}

static void test_files(void) {
        _cleanup_close_ int d = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        _cleanup_free_ char *text = NULL, *path = strprintf("%s/p/q/r", dir), *tree = strprintf("%s/p", dir);
        _cleanup_free_ char *out = strprintf("%s/p/link", dir);
        char one[DIGEST_LEN + 1], two[DIGEST_LEN + 1];
        struct stat st;
        size_t size;

        assert(d >= 0 && path && tree && out);
        assert(write_file_atomic(d, "f", "12345", 5, 0640, (uid_t) -1, (gid_t) -1, WRITE_FILE_SYNC) == 0);
        assert(fstatat(d, "f", &st, 0) == 0 && (st.st_mode & 07777) == 0640);
        assert(read_full_file_at(d, "f", 5, &text, &size) == 0 && size == 5 && streq(text, "12345"));
        assert(read_full_file_at(d, "f", 4, &text, &size) == -EFBIG);
        assert(read_full_file_at(d, "missing", 4, &text, &size) == -ENOENT);
        assert(write_file_atomic(d, "f", "x", 1, 0600, (uid_t) -1, (gid_t) -1, WRITE_FILE_NOREPLACE) == -EEXIST);
        assert(write_file_atomic(d, "f", "", 0, 0600, (uid_t) -1, (gid_t) -1, 0) == 0);
        assert(fstatat(d, "f", &st, 0) == 0 && st.st_size == 0);
        assert(write_file_atomic(d, "no/f", "", 0, 0600, (uid_t) -1, (gid_t) -1, 0) == -ENOENT);

        assert(mkdir_parents(path, 0755) == 0 && mkdir_parents(path, 0755) == 0);
        assert(write_file_atomic(AT_FDCWD, out, "x", 1, 0644, (uid_t) -1, (gid_t) -1, 0) == 0);
        assert(digest_tree(AT_FDCWD, tree, one) == 0 && digest_tree(AT_FDCWD, tree, two) == 0 && streq(one, two));
        assert(chmod(out, 0755) == 0 && digest_tree(AT_FDCWD, tree, two) == 0 && !streq(one, two));
        /* A link that leads out is removed, what it leads to is not. */
        assert(unlink(out) == 0 && symlink("../f", out) == 0);
        assert(rm_rf_at(AT_FDCWD, tree) == 0 && rm_rf_at(AT_FDCWD, tree) == 0);
        assert(access(tree, F_OK) < 0 && fstatat(d, "f", &st, 0) == 0);
        assert(symlinkat("f", d, "l") == 0 && rm_rf_at(d, "l") == 0 && fstatat(d, "f", &st, 0) == 0);
        remove_deep_tree(d);

        assert(digest_bytes("", 0, one) == 0);
        assert(streq(one, "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
        assert(digest_bytes("abc", 3, one) == 0);
        assert(streq(one, "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
}

/* Against the plainest of all maps, with removals in between, since it has no tombstones. */
static void test_strmap(void) {
        StrMap *m = strmap_new();
        char keys[500][16];
        bool there[500] = {};
        unsigned seed = 1;
        size_t n = 0;

        assert(m);
        for (int i = 0; i < 500; i++)
                snprintf(keys[i], sizeof keys[i], "k%d", i);
        for (int i = 0; i < 20000; i++) {
                unsigned k = (seed = seed * 1103515245 + 12345) >> 16;

                k %= 500;
                if (there[k]) {
                        assert(strmap_put(m, keys[k], keys[k]) == -EEXIST);
                        assert(strmap_remove(m, keys[k]) == keys[k]);
                        n--;
                } else {
                        assert(!strmap_remove(m, keys[k]));
                        assert(strmap_put(m, keys[k], keys[k]) == 0);
                        n++;
                }
                there[k] = !there[k];
                assert(strmap_size(m) == n);
                if (i % 500 == 0)
                        for (int j = 0; j < 500; j++)
                                assert(strmap_get(m, keys[j]) == (there[j] ? keys[j] : NULL));
        }
        assert(!strmap_get(m, NULL));
        strmap_free(m);
}

/* ---- configuration ---- */

typedef struct Conf {
        char *s;
        char **l;
        uint64_t size, time, number;
        bool flag;
} Conf;

static void put(const char *path, const char *text) {
        assert(mkdir_parents("/run/agentd-config/t.conf.d", 0755) == 0);
        assert(write_file_atomic(AT_FDCWD, path, text, strlen(text), 0644, (uid_t) -1, (gid_t) -1, 0) == 0);
}

static void test_config(void) {
        static const ConfigItem table[] = {
                { "A", "S", config_parse_string, offsetof(Conf, s) },
                { "A", "L", config_parse_strv, offsetof(Conf, l) },
                { "A", "Size", config_parse_size, offsetof(Conf, size) },
                { "B", "Time", config_parse_timespan, offsetof(Conf, time) },
                { "B", "Number", config_parse_unsigned, offsetof(Conf, number) },
                { "B", "Flag", config_parse_bool, offsetof(Conf, flag) },
                {},
        };
        static const char *const bad[] = {
                "[A]\nSize=x\n", "[A]\nSize\n", "[A\nSize=1\n", "[B]\nFlag=maybe\n", "[B]\nNumber=-1\n",
                "[B]\nTime=1x\n",
                "[A] x\n",
        };
        Conf c = { .number = 5 };

        if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
            mount("tmpfs", "/run", "tmpfs", 0, NULL) < 0) {
                printf("config: skipped, cannot mount a tmpfs: %m\n");
                return;
        }
        assert(config_load("t.conf", table, &c) == 0 && c.number == 5); /* no file at all is fine */
        put("/run/agentd-config/t.conf",
            "# c\n; c\n\n[A]\n S = a b # c \nL= x  y\nL=z\nSize=1K\nNumber=9\n[B]\nTime=2min\nFlag=yes");
        put("/run/agentd-config/t.conf.d/20-x.conf", "[B]\nNumber=20\n");
        put("/run/agentd-config/t.conf.d/10-x.conf", "[B]\nNumber=10\nTime=1h\n");
        put("/run/agentd-config/t.conf.d/30-x.ignored", "[B]\nNumber=30\n");
        put("/run/agentd-config/t.conf.d/.40.conf", "[B]\nNumber=40\n");
        assert(config_load("t.conf", table, &c) == 0);
        assert(streq(c.s, "a b # c") && strv_length(c.l) == 3 && streq(c.l[2], "z") && c.size == 1024);
        assert(c.number == 20 && c.time == 3600 * USEC_PER_SEC && c.flag); /* drop-ins in order; [A] has no Number= */
        put("/run/agentd-config/t.conf.d/20-x.conf", "[A]\nL=\nS=\n");
        assert(config_load("t.conf", table, &c) == 0 && strv_length(c.l) == 0 && !c.s);
        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                put("/run/agentd-config/t.conf.d/20-x.conf", bad[i]);
                assert(config_load("t.conf", table, &c) == -EINVAL);
        }
        strv_free(c.l);
        free(c.s);
}

static void test_log_limit(void) {
        LogLimit l = {};
        uint64_t t = 1000 * USEC_PER_SEC;

        for (unsigned i = 0; i < LOG_LIMIT_PER_MINUTE; i++)
                assert(log_limit_check(&l, t + i));
        for (unsigned i = 0; i < 1000; i++)
                assert(!log_limit_check(&l, t + 60 * USEC_PER_SEC - 1));
        assert(l.n_omitted == 1000);
        assert(log_limit_check(&l, t + 60 * USEC_PER_SEC) && l.n_omitted == 1000); /* now it can be told */
        l.n_omitted = 0;
        for (unsigned i = 1; i < LOG_LIMIT_PER_MINUTE; i++)
                assert(log_limit_check(&l, t + 61 * USEC_PER_SEC));
        assert(!log_limit_check(&l, t + 61 * USEC_PER_SEC));
}

int main(void) {
        char template[] = "/tmp/test-basic-XXXXXX";

        log_setup("test-basic");
        dir = mkdtemp(template);
        assert(dir);
        test_strings();
        test_utf8();
        test_parse();
        test_encoding();
        test_names();
        test_json();
        test_json_object();
        test_files();
        test_strmap();
        test_log_limit();
        assert(rm_rf_at(AT_FDCWD, dir) == 0);
        test_config(); /* the last one: it leaves the namespace */
        return 0;
}
