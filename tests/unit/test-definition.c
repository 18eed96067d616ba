/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Agent definitions: what is right is read whole, and each kind of wrong one is refused with a sentence that names the
 * key and the line. Also the settings that they are held against.
 */
#include <sys/stat.h>

#include "basic/fs-util.h"
#include "basic/json-util.h"
#include "basic/name-util.h"
#include "basic/string-util.h"

#include "definition.h"

static Settings *settings;

static int parse(const char *text, DefinitionFlags flags, Definition **ret, char **ret_error) {
        return definition_parse(text, strlen(text), settings, flags, ret, ret_error);
}

/* PART1 and PART2 must be in the message. */
static void bad(const char *text, const char *part1, const char *part2) {
        _cleanup_free_ char *error = NULL;
        Definition *d = NULL;
        int r;

        r = parse(text, 0, &d, &error);
        if (r != -EINVAL || d || !error || !strstr(error, part1) || !strstr(error, part2)) {
                fprintf(stderr, "%d \"%s\" for: %.400s\n", r, strempty(error), text);
                assert(false);
        }
        /* It goes to a terminal and to the journal: one line, no control characters. */
        assert(!string_has_cc(error) && utf8_is_valid(error, strlen(error)) && strlen(error) < 4096);
        assert(definition_parse(text, strlen(text), settings, 0, &d, NULL) == -EINVAL);
}

/* The members in TEXT stand on line 3; OTHERS are the mandatory ones but those that TEXT has. */
static void bad_member(const char *others, const char *text, const char *key) {
        _cleanup_free_ char *whole = strprintf("{\n%s,\n%s\n}", others, text);

        assert(whole);
        bad(whole, "line 3: ", key);
}

#define NAME "\"name\":\"a\""
#define IMAGE "\"image\":\"i\""
#define KIND "\"kind\":\"exec\""
#define COMMAND "\"command\":[\"/bin/true\"]"
#define ALL NAME "," IMAGE "," KIND "," COMMAND

static void test_whole(void) {
        static const char text[] =
                "{\"name\":\"analyst\",\"description\":\"draws \\u00e4\","
                "\"image\":\"analyst-base\",\"kind\":\"command\",\n"
                "\"command\":[\"/usr/bin/python3\",\"-c\",\"a\\nb $HOME %i\",\"\"],\n"
                "\"environment\":{\"Z\":\"1\",\"A_b\":\"tab\\tline\\n\",\"EMPTY\":\"\"},\n"
                "\"services\":[\"z\",\"market-data\"],\n"
                "\"limits\":{\"memory\":\"256M\",\"cpu\":1.5,\"tasks\":10,\"timeout\":\"2min\",\"disk\":1048576,"
                "\"files\":100,"
                "\"artifacts\":0,\"artifact_size\":\"1K\",\"log\":\"1M\"},\n"
                "\"concurrency\":3,\"isolation\":\"unit\"}";
        _cleanup_(definition_freep) Definition *d = NULL, *again = NULL;
        _cleanup_free_ char *error = NULL, *canonical = NULL, *second = NULL;

        assert(parse(text, 0, &d, &error) == 0 && !error);
        assert(streq(d->name, "analyst") && streq(d->image, "analyst-base") && streq(d->description, "draws \xc3\xa4"));
        assert(d->kind == AGENT_COMMAND && d->isolation == AGENT_ISOLATION_UNIT && d->concurrency == 3);
        assert(strv_length(d->command) == 4 && streq(d->command[2], "a\nb $HOME %i") && streq(d->command[3], ""));
        assert(strv_length(d->environment) == 3 && streq(d->environment[0], "A_b=tab\tline\n"));
        assert(streq(definition_environment_get(d, "Z"), "1") && streq(definition_environment_get(d, "EMPTY"), ""));
        assert(!definition_environment_get(d, "A") && !definition_environment_get(d, "z"));
        assert(strv_length(d->services) == 2 && streq(d->services[0], "market-data"));
        assert(d->limits.memory == 256U << 20 && d->limits.cpu == 1500000 && d->limits.tasks == 10);
        assert(d->limits.timeout_usec == 120 * USEC_PER_SEC && d->limits.disk == 1U << 20 && d->limits.files == 100);
        assert(d->limits.artifacts == 0 && d->limits.artifact_size == 1024 && d->limits.log == 1U << 20);

        /* The canonical form is a fixed point. */
        assert(definition_format(d, &canonical) == 0 && !strchr(canonical, '\n'));
        assert(parse(canonical, 0, &again, &error) == 0);
        assert(definition_format(again, &second) == 0 && streq(canonical, second));
        assert(again->limits.cpu == d->limits.cpu && streq(again->environment[0], d->environment[0]));
}

static void test_defaults(void) {
        _cleanup_(definition_freep) Definition *d = NULL, *stored = NULL;
        _cleanup_free_ char *error = NULL, *canonical = NULL;
        uint64_t memory = settings->maximum.memory;

        assert(parse("{" ALL "}", 0, &d, &error) == 0);
        assert(d->kind == AGENT_EXEC && d->concurrency == DEFINITION_CONCURRENCY_DEFAULT && !d->description);
        assert(d->environment && !d->environment[0] && d->services && !d->services[0]);
        assert(memcmp(&d->limits, &settings->defaults, sizeof d->limits) == 0);
        /* Defaults stay the administrator's: they are not written down. */
        assert(definition_format(d, &canonical) == 0 && !strstr(canonical, "limits"));

        /* A bound that was lowered later: new definitions are refused, stored ones go on with less. */
        settings->maximum.memory = 64U << 20;
        assert(parse("{" ALL ",\"limits\":{\"memory\":\"128M\"}}", 0, &stored, &error) == -EINVAL);
        assert(strstr(error, "line 1: limits.memory: ") && strstr(error, "MaxMemory="));
        assert(parse("{" ALL ",\"limits\":{\"memory\":\"128M\"}}", DEFINITION_STORED, &stored, &error) == 0);
        assert(stored->limits.memory == 64U << 20);
        settings->maximum.memory = memory;
}

static void test_keys(void) {
        bad_member(NAME "," IMAGE "," KIND, COMMAND ",\"comand\":[]", "comand: unknown key");
        bad_member(ALL, "\"limits\":{\"memroy\":1}", "limits.memroy: unknown key");
        bad_member(ALL, "\"\":1", ": unknown key");
        bad_member(ALL, "\"Name\":\"b\"", "Name: unknown key");
        bad_member(ALL, "\"limits\":{\"memory\":{\"max\":1}}", "limits.memory: ");
        bad("{" IMAGE "," KIND "," COMMAND "}", "line 1: ", "name: is missing");
        bad("{" NAME "," KIND "," COMMAND "}", "line 1: ", "image: is missing");
        bad("{" NAME "," IMAGE "," COMMAND "}", "line 1: ", "kind: is missing");
        bad("{" NAME "," IMAGE "," KIND "}", "line 1: ", "command: is missing");
        bad("{}", "line 1: ", "is missing");
        /* Twice, anywhere, also where the values are equal. */
        bad("{" ALL "," NAME "}", "line ", "name: appears twice");
        bad("{" ALL ",\n\"environment\":{\"A\":\"1\",\n\"A\":\"1\"}}", "line 3: ", "A: appears twice");
        bad("{" ALL ",\n\"limits\":{\"tasks\":1,\"tasks\":2}}", "line ", "tasks: appears twice");
}

static void test_types(void) {
        static const char *const values[] = { "null", "true", "1", "1.5", "\"\"", "[]", "{}", "[[]]", "[null]", "-1" };
        static const struct {
                const char *others, *key;
                const char *fine; /* types that are right for this key, by place in values[] */
        } keys[] = {
                { IMAGE "," KIND "," COMMAND, "name", "" },
                { NAME "," KIND "," COMMAND, "image", "" },
                { NAME "," IMAGE "," COMMAND, "kind", "" },
                { NAME "," IMAGE "," KIND, "command", "" },
                { ALL, "description", "4" },
                { ALL, "environment", "6" },
                { ALL, "services", "5" },
                { ALL, "limits", "6" },
                { ALL, "concurrency", "2" },
                { ALL, "isolation", "" },
        };
        static const char *const limits[] = { "timeout", "memory", "cpu", "tasks", "disk", "files", "artifacts",
                                              "artifact_size", "log" };

        for (size_t k = 0; k < ELEMENTSOF(keys); k++)
                for (size_t v = 0; v < ELEMENTSOF(values); v++) {
                        _cleanup_free_ char *member = strprintf("\"%s\":%s", keys[k].key, values[v]);
                        _cleanup_free_ char *prefix = strprintf("%s: ", keys[k].key);

                        assert(member && prefix);
                        if (!strchr(keys[k].fine, '0' + (int) v))
                                bad_member(keys[k].others, member, prefix);
                }
        for (size_t k = 0; k < ELEMENTSOF(limits); k++)
                for (size_t v = 0; v < ELEMENTSOF(values); v++) {
                        _cleanup_free_ char *member = strprintf("\"limits\":{\"%s\":%s}", limits[k], values[v]);
                        _cleanup_free_ char *prefix = strprintf("limits.%s: ", limits[k]);

                        assert(member && prefix);
                        if (!streq(values[v], "1") && !streq(values[v], "1.5"))
                                bad_member(ALL, member, prefix);
                        else if (streq(values[v], "1.5") && !streq(limits[k], "cpu"))
                                bad_member(ALL, member, prefix);
                }
        bad("[]", "line 1: ", "must be an object");
        bad("\"x\"", "line 1: ", "must be an object");
        bad("1", "line 1: ", "must be an object");
}

static void test_numbers(void) {
        static const char *const numbers[] = {
                "0", "-1", "1.5", "1e400", "-1e400", "18446744073709551615", "18446744073709551616",
                "99999999999999999999999999", "1e3", "9223372036854775808", "\"1e3\"", "\" 1\"", "\"-1\"",
                "\"infinity\"",
                "\"1KK\"", "\"99999999999999999999G\"", "\"18446744073709551615T\"",
        };

        for (size_t i = 0; i < ELEMENTSOF(numbers); i++) {
                _cleanup_free_ char *concurrency = strprintf("\"concurrency\":%s", numbers[i]);
                _cleanup_free_ char *memory = strprintf("\"limits\":{\"memory\":%s}", numbers[i]);
                _cleanup_free_ char *tasks = strprintf("\"limits\":{\"tasks\":%s}", numbers[i]);
                _cleanup_free_ char *cpu = strprintf("\"limits\":{\"cpu\":%s}", numbers[i]);
                _cleanup_free_ char *timeout = strprintf("\"limits\":{\"timeout\":%s}", numbers[i]);

                assert(concurrency && memory && tasks && cpu && timeout);
                bad_member(ALL, concurrency, "concurrency: ");
                bad_member(ALL, memory, "limits.memory: ");
                bad_member(ALL, tasks, "limits.tasks: ");
                if (!streq(numbers[i], "1.5"))
                        bad_member(ALL, cpu, "limits.cpu: ");
                if (!streq(numbers[i], "\" 1\""))
                        bad_member(ALL, timeout, "limits.timeout: ");
        }
        bad_member(ALL, "\"concurrency\":1001", "concurrency: ");
        bad_member(ALL, "\"limits\":{\"timeout\":\"500ms\"}", "limits.timeout: is too small");
        bad_member(ALL, "\"limits\":{\"timeout\":\"25h\"}", "limits.timeout: ");
        bad_member(ALL, "\"limits\":{\"memory\":\"1K\"}", "limits.memory: is too small");
        bad_member(ALL, "\"limits\":{\"cpu\":0.001}", "limits.cpu: ");
        bad_member(ALL, "\"limits\":{\"cpu\":17}", "(MaxCPU= in agentd.conf)");
}

static void test_names(void) {
        char long_name[301];
        const char *const names[] = {
                "", "A", "a/b", "..", "a..b", "-a", ".a", "a b", "a\\nb", "a\\tb", "\\u00e4", "a.", "a-", "a@b", "a%25",
                "../../etc/passwd", "a\\\\b", "a\\u007f", "a:b", "a'b", "a;b", "$a",
                "64ccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc",
                long_name,
        };

        memset(long_name, 'a', 300);
        long_name[300] = 0;
        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                _cleanup_free_ char *name = strprintf("\"name\":\"%s\"", names[i]);
                _cleanup_free_ char *image = strprintf("\"image\":\"%s\"", names[i]);
                _cleanup_free_ char *services = strprintf("\"services\":[\"ok\",\"%s\"]", names[i]);
                _cleanup_free_ char *variable = strprintf("\"environment\":{\"%s\":\"\"}", names[i]);

                assert(name && image && services && variable);
                bad_member(IMAGE "," KIND "," COMMAND, name, "name: must be a name");
                bad_member(NAME "," KIND "," COMMAND, image, "image: must be a name");
                bad_member(ALL, services, "services: ");
                if (!streq(names[i], "A"))
                        bad_member(ALL, variable, "environment.");
        }
        bad_member(ALL, "\"services\":[\"a\",\"b\",\"a\"]", "services: \"a\" appears twice");
        /* A NUL in disguise, in a value and in a key. */
        bad("{\n\"name\":\"a\\u0000b\"," IMAGE "," KIND "," COMMAND "}", "line 2", "");
        bad("{" ALL ",\n\"environment\":{\"A\\u0000B\":\"\"}}", "line 2", "");
        bad("{" ALL ",\n\"environment\":{\"A\":\"\\u0000\"}}", "line 2", "");
}

static void test_command_and_environment(void) {
        static const char *const commands[] = {
                "[\"\"]", "[\"sh\"]", "[\"./x\"]", "[\"/\"]", "[\"/bin/\"]", "[\"/bin/../x\"]", "[\"/./x\"]",
                "[\"//x\"]",
                "[\"/x\\n\"]", "[\"-/x\"]", "[\"@/x\"]", "[\"+/x\"]", "[\"/x\",1]", "[\"/x\",null]", "[\"/x\",[\"y\"]]",
        };
        static const char *const reserved[] = {
                "AGENT_RUN_ID", "AGENT_", "AGENT_TOKEN_FILE", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "LISTEN_FDS",
        };
        _cleanup_free_ char *big = malloc(DEFINITION_ARGUMENT_MAX + 2), *many = NULL, *text = NULL, *variable = NULL;
        Definition *d = NULL;
        char *error = NULL, *p;

        for (size_t i = 0; i < ELEMENTSOF(commands); i++) {
                _cleanup_free_ char *member = strprintf("\"command\":%s", commands[i]);

                assert(member);
                bad_member(NAME "," IMAGE "," KIND, member, "command: must ");
        }
        for (size_t i = 0; i < ELEMENTSOF(reserved); i++) {
                _cleanup_free_ char *member = strprintf("\"environment\":{\"%s\":\"\"}", reserved[i]);
                _cleanup_free_ char *key = strprintf("environment.%s: is reserved", reserved[i]);

                assert(member && key);
                bad_member(ALL, member, key);
        }
        bad_member(ALL, "\"environment\":{\"A\":1}", "environment.A: must be a string");
        bad_member(ALL, "\"environment\":{\"1A\":\"\"}", "environment.1A: ");
        bad_member(ALL, "\"environment\":{\"A=B\":\"\"}", "environment.");
        bad_member(ALL, "\"environment\":{\"A\":\"\\u0007\"}", "environment.A: must not hold control characters");
        bad("{" ALL ",\"environment\":{\n\"A\":\"\",\n\"B\":\"\\u001b\"}}", "line 3: ", "environment.B: ");
        bad_member(ALL, "\"description\":\"\\u001b[31m\"", "description: must not hold control characters");

        assert(big);
        memset(big, 'x', DEFINITION_ARGUMENT_MAX + 1);
        big[DEFINITION_ARGUMENT_MAX + 1] = 0;
        text = strprintf("\"command\":[\"/x\",\"%s\"]", big);
        variable = strprintf("\"environment\":{\"A\":\"%s\"}", big);
        assert(text && variable);
        bad_member(NAME "," IMAGE "," KIND, text, "command: ");
        bad_member(ALL, variable, "environment.A: ");
        big[DEFINITION_DESCRIPTION_MAX + 1] = 0;
        free(text);
        text = strprintf("\"description\":\"%s\"", big);
        assert(text);
        bad_member(ALL, text, "description: must be at most");

        many = malloc(DEFINITION_SIZE_MAX + 2);
        assert(many);
        p = stpcpy(many, "\"command\":[\"/x\"");
        for (unsigned i = 0; i < DEFINITION_COMMAND_MAX; i++)
                p = stpcpy(p, ",\"\"");
        strcpy(p, "]");
        bad_member(NAME "," IMAGE "," KIND, many, "command: must have at most 256 elements");
        memset(many, ' ', DEFINITION_SIZE_MAX + 1);
        many[DEFINITION_SIZE_MAX + 1] = 0;
        assert(parse(many, 0, &d, &error) == -E2BIG && error);
        free(error);
}

static void test_json(void) {
        char deep[512];
        Definition *d = NULL;
        char *error = NULL, *p;

        bad("", "", "");
        bad("{", "line 1", "");
        bad("{" ALL "} x", "line 1", "");
        bad("{" ALL ",}", "line 1", "");
        bad("{\n\n" ALL "\n,,}", "line 4", "");
        bad("\xef\xbb\xbf{" ALL "}", "line 1", "");
        bad("{" ALL ",\"description\":\"\xff\"}", "UTF-8", "");
        bad("{" ALL ",\"description\":\"\xed\xa0\x80\"}", "UTF-8", "");
        bad("{" ALL ",\"description\":\"\\ud800\"}", "line 1", "");
        bad("{" ALL ",\"description\":\"a\nb\"}", "line 1", "");
        p = stpcpy(deep, "{" ALL ",\"limits\":");
        for (int i = 0; i < 100; i++)
                *p++ = '[';
        for (int i = 0; i < 100; i++)
                *p++ = ']';
        strcpy(p, "}");
        bad(deep, "nested", "64");
        assert(definition_parse("{\0}", 3, settings, 0, &d, &error) == -EINVAL && strstr(error, "NUL"));
        free(error);
}

static void test_policy(void) {
        _cleanup_(definition_freep) Definition *a = NULL, *b = NULL, *c = NULL;
        _cleanup_json_ sd_json_variant *services = NULL, *reordered = NULL, *other = NULL, *back = NULL;
        char da[DIGEST_LEN + 1], db[DIGEST_LEN + 1], dc[DIGEST_LEN + 1], dn[DIGEST_LEN + 1];
        _cleanup_free_ char *text = NULL;

        assert(parse("{" ALL ",\"environment\":{\"A\":\"1\",\"B\":\"2\"}}", 0, &a, NULL) == 0);
        assert(parse("{" COMMAND ",\"environment\":{\"B\":\"2\",\"A\":\"1\"}," KIND "," IMAGE "," NAME "}", 0, &b,
                     NULL) == 0);
        assert(parse("{" ALL ",\"environment\":{\"A\":\"1\",\"B\":\"3\"}}", 0, &c, NULL) == 0);
        assert(json_parse("{\"m\":{\"x\":1,\"y\":2},\"n\":{}}", 26, &services, NULL) == 0);
        assert(json_parse("{\"n\":{},\"m\":{\"y\":2,\"x\":1}}", 26, &reordered, NULL) == 0);
        assert(json_parse("{\"m\":{\"x\":1,\"y\":3},\"n\":{}}", 26, &other, NULL) == 0);
        assert(definition_policy(a, services, &text, da) == 0 && digest_is_valid(da));
        assert(definition_policy(b, reordered, NULL, db) == 0 && streq(da, db));
        assert(definition_policy(c, services, NULL, dc) == 0 && !streq(da, dc));
        assert(definition_policy(a, other, NULL, dc) == 0 && !streq(da, dc));
        assert(definition_policy(a, NULL, NULL, dn) == 0 && !streq(da, dn));
        assert(json_parse(text, strlen(text), &back, NULL) == 0);
        assert(sd_json_variant_by_key(back, "limits") && sd_json_variant_by_key(back, "services"));
}

static void test_settings(void) {
        uint64_t cpu = 0;
        static const struct {
                const char *text;
                uint64_t value; /* 0: refused */
        } cpus[] = {
                { "1", 1000000 }, { "0.5", 500000 }, { "150%", 1500000 }, { "2.25", 2250000 }, { "0.000001", 1 },
                { "0", 0 }, { "", 0 }, { "-1", 0 }, { "1.", 0 }, { ".5", 0 }, { "1.0000001", 0 }, { "1e3", 0 },
                { "nan", 0 }, { "%", 0 }, { "1 ", 0 }, { "99999999999999999999", 0 }, { "100001", 0 },
                { "12.5%", 125000 },
        };

        for (size_t i = 0; i < ELEMENTSOF(cpus); i++) {
                int r = parse_cpus(cpus[i].text, &cpu);

                if ((cpus[i].value > 0) != (r >= 0) || (r >= 0 && cpu != cpus[i].value)) {
                        fprintf(stderr, "\"%s\": %d, %" PRIu64 "\n", cpus[i].text, r, cpu);
                        assert(false);
                }
        }
        assert(settings->max_attempts == 3 && settings->max_queued > settings->max_queued_per_user);
        assert(settings->defaults.timeout_usec < settings->maximum.timeout_usec);
        assert(settings->runner_directory[0] == '/');
}

int main(void) {
        assert(settings_new(&settings) == 0);
        test_whole();
        test_defaults();
        test_keys();
        test_types();
        test_numbers();
        test_names();
        test_command_and_environment();
        test_json();
        test_policy();
        test_settings();
        settings_free(settings);
        return 0;
}
