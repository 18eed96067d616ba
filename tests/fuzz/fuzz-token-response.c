/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* What a token endpoint may answer: the first byte is the status, the rest the body. An access token that comes out
 * could go into a header line, lives for a while and not for ever; what is said of a bad answer is our own word. */

#include "basic/string-util.h"
#include "token-response.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        static const unsigned statuses[] = { 200, 201, 204, 302, 400, 401, 429, 500 };
        const char *detail = "untouched";
        Secret *s = NULL;
        uint64_t life = 0;

        if (size < 1)
                return 0;
        unsigned status = statuses[data[0] % ELEMENTSOF(statuses)];
        char *exact = malloc(size);
        assert(exact);
        memcpy(exact, data + 1, size - 1);
        exact[size - 1] = 0;

        TokenCode c = token_response_parse(status, exact, size - 1, &s, &life, &detail);
        if (c == TOKEN_OK) {
                assert(status == 200 || status == 201);
                assert(s && secret_size(s) > 0 && secret_size(s) <= TOKEN_SIZE_MAX);
                for (size_t i = 0; i < secret_size(s); i++)
                        assert(secret_data(s)[i] > 0x20 && secret_data(s)[i] < 0x7f);
                assert(life > 0 && life <= TOKEN_LIFE_MAX_SEC);
                secret_free(s);
        } else {
                assert(!s && token_code_to_string(c));
                assert(detail && utf8_is_valid(detail, strlen(detail)) && !string_has_cc(detail));
        }
        free(exact);
        return 0;
}
