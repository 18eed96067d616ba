/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Options by a table: each kind of value where it is right, of the wrong type, out of its bounds; unknown names; what is
 * not given stays as it was; large arrays are refused without being read. Messages are sealed and read back, which needs
 * a bus that has begun but nobody at its other end.
 */

#undef NDEBUG

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "basic/string-util.h"
#include "bus/bus-error.h"
#include "bus/bus-options.h"

typedef struct Options {
        const char *word;
        bool yes;
        uint32_t small;
        uint64_t large;
        int32_t level;
        char **list;
} Options;

static bool is_short(const char *s) {
        return strlen(s) <= 3;
}

static int refuse(sd_bus_message *m, const BusOption *option, void *field, sd_bus_error *e) {
        return sd_bus_error_set(e, SD_BUS_ERROR_ACCESS_DENIED, "Not you.");
}

static const BusOption table[] = {
        { "word", "short", bus_option_string, offsetof(Options, word), .is_valid = is_short },
        { "yes", "true or false", bus_option_bool, offsetof(Options, yes) },
        { "small", "from 1 to 10", bus_option_u32, offsetof(Options, small), .min = 1, .max = 10 },
        { "large", "above 0", bus_option_u64, offsetof(Options, large), .min = 1 },
        { "level", "from -3 to 3", bus_option_i32, offsetof(Options, level), .min = (uint64_t) -3, .max = 3 },
        { "list", "an array", bus_option_strings, offsetof(Options, list) },
        { "mine", "mine", refuse },
        {}
};

static sd_bus *bus;

static sd_bus_message *message(void) {
        sd_bus_message *m = NULL;

        assert(sd_bus_message_new_method_call(bus, &m, "a.b", "/", "a.b", "C") >= 0);
        return m;
}

static void seal(sd_bus_message *m) {
        static uint64_t cookie;

        assert(sd_bus_message_seal(m, ++cookie, 0) >= 0 && sd_bus_message_rewind(m, true) >= 0);
}

/* Reads M, which goes; returns the sentence of the error, NULL where there was none. */
static char *take(sd_bus_message *m, Options *o) {
        _cleanup_(sd_bus_error_free) sd_bus_error e = SD_BUS_ERROR_NULL;
        int r;

        seal(m);
        r = bus_read_options(m, table, o, &e);
        assert((r < 0) == sd_bus_error_is_set(&e));
        assert(r < 0 || sd_bus_message_at_end(m, true) > 0);
        assert(r >= 0 || streq(e.name, BUS_ERROR_INVALID_OPTION) || streq(e.name, SD_BUS_ERROR_ACCESS_DENIED));
        sd_bus_message_unref(m);
        return r < 0 ? strdup(e.message) : NULL;
}

static void one(const char *expected, const char *name, const char *type, ...) {
        _cleanup_free_ char *sentence = NULL;
        sd_bus_message *m = message();
        Options o = {};
        va_list ap;

        assert(sd_bus_message_open_container(m, 'a', "{sv}") >= 0 && sd_bus_message_open_container(m, 'e', "sv") >= 0);
        assert(sd_bus_message_append(m, "s", name) >= 0 && sd_bus_message_open_container(m, 'v', type) >= 0);
        va_start(ap, type);
        assert(sd_bus_message_appendv(m, type, ap) >= 0);
        va_end(ap);
        for (int i = 0; i < 3; i++)
                assert(sd_bus_message_close_container(m) >= 0);
        sentence = take(m, &o);
        assert(expected ? sentence && streq(sentence, expected) : !sentence);
        strv_free(o.list);
}

static void test_right(void) {
        Options o = { .word = "old", .small = 7 };
        sd_bus_message *m = message(), *kept;

        assert(sd_bus_message_append(m, "a{sv}", 4, "yes", "b", 1, "large", "t", UINT64_MAX, "level", "i", -3, "list",
                                     "as", 2, "a", "b") >= 0);
        kept = sd_bus_message_ref(m);
        assert(!take(m, &o));
        assert(streq(o.word, "old") && o.small == 7 && o.yes && o.large == UINT64_MAX && o.level == -3);
        assert(strv_length(o.list) == 2 && streq(o.list[1], "b"));
        sd_bus_message_unref(kept);

        /* The last one counts; an empty array is a list. */
        m = message();
        assert(sd_bus_message_append(m, "a{sv}", 3, "small", "u", 1, "small", "u", 10, "list", "as", 0) >= 0);
        assert(!take(m, &o));
        assert(o.small == 10 && o.list && strv_length(o.list) == 0);
        strv_free(o.list);

        m = message();
        assert(sd_bus_message_append(m, "a{sv}", 0) >= 0);
        assert(!take(m, &o));
}

static void test_wrong(void) {
        one(NULL, "word", "s", "abc");
        one("Option word must be short.", "word", "s", "abcd");
        one("Option word must be short.", "word", "u", 1);
        one("Option yes must be true or false.", "yes", "s", "yes");
        one("Option small must be from 1 to 10.", "small", "u", 0);
        one("Option small must be from 1 to 10.", "small", "u", 11);
        one("Option small must be from 1 to 10.", "small", "t", UINT64_C(1));
        one("Option large must be above 0.", "large", "t", UINT64_C(0));
        one("Option level must be from -3 to 3.", "level", "i", -4);
        one("Option level must be from -3 to 3.", "level", "i", 4);
        one("Option list must be an array.", "list", "s", "a");
        one("Option list must be an array.", "list", "au", 1, 1);
        one("Not you.", "mine", "s", "a");
        one("There is no option \"words\". Options are word, yes, small, large, level, list, mine.", "words", "s", "a");
        one("There is no option \"\". Options are word, yes, small, large, level, list, mine.", "", "s", "a");
}

static void test_large(void) {
        _cleanup_free_ char *sentence = NULL;
        sd_bus_message *m = message();
        Options o = {};

        assert(sd_bus_message_open_container(m, 'a', "{sv}") >= 0 && sd_bus_message_open_container(m, 'e', "sv") >= 0);
        assert(sd_bus_message_append(m, "s", "list") >= 0 && sd_bus_message_open_container(m, 'v', "as") >= 0);
        assert(sd_bus_message_open_container(m, 'a', "s") >= 0);
        for (unsigned i = 0; i <= BUS_STRINGS_MAX; i++)
                assert(sd_bus_message_append(m, "s", "") >= 0);
        for (int i = 0; i < 4; i++)
                assert(sd_bus_message_close_container(m) >= 0);
        sentence = take(m, &o);
        assert(streq(sentence, "Option list must be an array.") && !o.list);
}

int main(void) {
        int fds[2];

        assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) >= 0);
        assert(bus_error_register() >= 0);
        assert(sd_bus_new(&bus) >= 0 && sd_bus_set_fd(bus, fds[0], fds[0]) >= 0 && sd_bus_start(bus) >= 0);
        test_right();
        test_wrong();
        test_large();
        sd_bus_close_unref(bus);
        close(fds[1]);
        return 0;
}
