/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* Proves that a secret does not come through in any spelling that is looked for, wherever a stream is cut into
 * pieces, that lengths stay as they were, and that what is no start of a secret is not held back. */

#include "basic/string-util.h"
#include "redactor.h"

static const char secret[] = "sk/Zq+73=abc&XYZ.9~k-Q";

static Redactor *make(void) {
        Redactor *r;

        assert(redactor_new(&r) == 0);
        assert(redactor_add(r, secret, strlen(secret)) == 0);
        assert(redactor_add(r, "hunter2hunter2", 14) == 0);
        assert(redactor_add(r, "tiny", 4) == 0); /* left out */
        return r;
}

/* TEXT cut in two at each place, and in pieces of one. */
static void check(const char *text, const char *needle) {
        size_t l = strlen(text);

        for (size_t cut = 0; cut <= l; cut++) {
                Redactor *r = make();
                HttpBuffer out = {};

                assert(redactor_feed(r, text, cut, &out) == 0);
                assert(redactor_feed(r, text + cut, l - cut, &out) == 0);
                assert(redactor_flush(r, &out) == 0);
                assert(out.size == l);
                assert(!memmem(http_buffer_data(&out), out.size, needle, strlen(needle)));
                assert(redactor_hits(r) >= 1);
                /* What is around it is untouched. */
                assert(memcmp(out.data + out.start, text, 4) == 0);
                assert(memcmp(out.data + out.start + l - 4, text + l - 4, 4) == 0);
                http_buffer_done(&out);
                redactor_free(r);
        }

        Redactor *r = make();
        HttpBuffer out = {};
        for (size_t i = 0; i < l; i++)
                assert(redactor_feed(r, text + i, 1, &out) == 0);
        assert(redactor_flush(r, &out) == 0);
        assert(out.size == l && !memmem(http_buffer_data(&out), out.size, needle, strlen(needle)));
        http_buffer_done(&out);
        redactor_free(r);
}

int main(void) {
        _cleanup_free_ char *plain = strprintf("head %s tail", secret);
        check(plain, secret);
        check("head sk%2FZq%2B73%3Dabc%26XYZ.9~k-Q tail", "Zq%2B73");
        check("head sk%2fZq%2b73%3dabc%26XYZ.9~k-Q tail", "Zq%2b73");
        check("head hunter2hunter2hunter2hunter2 tail", "hunter2");

        /* In the middle of something that is base64-encoded as a whole, at each offset. */
        for (size_t offset = 0; offset < 6; offset++) {
                _cleanup_free_ char *inner = strprintf("%.*s%s%s", (int) offset, "user: ", secret, "trailing"),
                        *b64 = NULL, *text = NULL;

                b64 = base64_encode(inner, strlen(inner));
                text = strprintf("head \"%s\" tail", b64);
                /* Ten characters from the middle of the secret's own part. */
                _cleanup_free_ char *needle = strndup(b64 + (offset + 6) * 4 / 3, 10);
                check(text, needle);
                for (char *p = text; *p; p++)
                        *p = *p == '+' ? '-' : *p == '/' ? '_' : *p;
                for (char *p = needle; *p; p++)
                        *p = *p == '+' ? '-' : *p == '/' ? '_' : *p;
                check(text, needle);
        }

        /* Nothing is held back that is no start of a secret. */
        Redactor *r = make();
        HttpBuffer out = {};
        static const char event[] = "data: {\"x\":1}\n\n";
        assert(redactor_feed(r, event, strlen(event), &out) == 0);
        assert(out.size == strlen(event));
        assert(redactor_feed(r, "ends in sk/Z", 12, &out) == 0);
        assert(out.size == strlen(event) + 8);
        assert(redactor_feed(r, "eb!!", 4, &out) == 0);
        assert(out.size == strlen(event) + 16);
        assert(redactor_hits(r) == 0);

        /* Binary data passes as it is. */
        http_buffer_done(&out);
        char all[1024];
        for (size_t i = 0; i < sizeof(all); i++)
                all[i] = (char) (i * 7);
        assert(redactor_feed(r, all, sizeof(all), &out) == 0);
        assert(redactor_flush(r, &out) == 0);
        assert(out.size == sizeof(all) && memcmp(http_buffer_data(&out), all, sizeof(all)) == 0);
        http_buffer_done(&out);

        char header[] = "echo hunter2hunter2";
        redactor_apply(r, header, strlen(header));
        assert(streq(header, "echo **************"));
        redactor_free(r);

        /* A secret that is the start of another one. */
        assert(redactor_new(&r) == 0);
        assert(redactor_add(r, "abcdefgh", 8) == 0 && redactor_add(r, "abcdefgh12345", 13) == 0);
        assert(redactor_feed(r, "x abcdefgh123", 13, &out) == 0);
        assert(out.size == 2);
        assert(redactor_feed(r, "45 y abcdefgh", 13, &out) == 0);
        assert(redactor_flush(r, &out) == 0);
        assert(out.size == 26 && memcmp(http_buffer_data(&out), "x ************* y ********", 26) == 0);
        http_buffer_done(&out);
        redactor_free(r);
        return 0;
}
