/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <strings.h>

#include "basic/json-util.h"
#include "basic/string-util.h"
#include "token-response.h"

static const char *const codes[_TOKEN_CODE_MAX] = {
        [TOKEN_OK] = "ok",
        [TOKEN_UNAVAILABLE] = "token-endpoint-unavailable",
        [TOKEN_REFUSED] = "token-endpoint-refused",
        [TOKEN_BAD_ANSWER] = "token-endpoint-bad-answer",
        [TOKEN_NOT_ALLOWED] = "token-endpoint-not-allowed",
        [TOKEN_CREDENTIAL] = "credential-unusable",
};

const char *token_code_to_string(TokenCode c) {
        return c >= 0 && c < _TOKEN_CODE_MAX ? codes[c] : NULL;
}

/* The endpoint's text is not ours to repeat; its error word is, where it is a known one. */
static const char *known_error(const char *s) {
        static const char *const words[] = {
                "invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type",
                "invalid_scope", "invalid_target", "access_denied", "server_error", "temporarily_unavailable",
        };

        for (size_t i = 0; i < ELEMENTSOF(words); i++)
                if (streq_ptr(s, words[i]))
                        return words[i];

        return "the answer is an error";
}

/* RFC 6750's b64token and a little more: visible ASCII. A blank would end the value for some readers. */
static bool token_is_valid(const char *s, size_t n) {
        if (n == 0 || n > TOKEN_SIZE_MAX)
                return false;
        for (size_t i = 0; i < n; i++)
                if (s[i] <= 0x20 || s[i] >= 0x7f)
                        return false;
        return true;
}

/* A number, or the same as a string, as some endpoints write it. */
static int life_parse(sd_json_variant *v, uint64_t *ret) {
        uint64_t life;

        if (!v || sd_json_variant_is_null(v)) {
                *ret = TOKEN_LIFE_DEFAULT_SEC;
                return 0;
        }

        switch (sd_json_variant_type(v)) {
        case SD_JSON_VARIANT_UNSIGNED:
                life = sd_json_variant_unsigned(v);
                break;
        case SD_JSON_VARIANT_INTEGER:
                if (sd_json_variant_integer(v) < 0)
                        return -EINVAL;
                life = (uint64_t) sd_json_variant_integer(v);
                break;
        case SD_JSON_VARIANT_REAL: {
                double d = sd_json_variant_real(v);

                if (!(d >= 1))
                        return -EINVAL;
                life = d >= (double) TOKEN_LIFE_MAX_SEC ? TOKEN_LIFE_MAX_SEC : (uint64_t) d;
                break;
        }
        case SD_JSON_VARIANT_STRING: {
                int r = parse_uint64(sd_json_variant_string(v), &life);

                if (r == -ERANGE)
                        life = TOKEN_LIFE_MAX_SEC;
                else if (r < 0)
                        return r;
                break;
        }
        default:
                return -EINVAL;
        }

        if (life == 0)
                return -EINVAL;
        *ret = MIN(life, TOKEN_LIFE_MAX_SEC);
        return 0;
}

TokenCode token_response_parse(unsigned status, const char *body, size_t size, Secret **ret, uint64_t *ret_life_sec,
                               const char **ret_detail) {
        _cleanup_json_ sd_json_variant *v = NULL;
        const char *token, *type;
        uint64_t life;
        Secret *s;

        *ret_detail = NULL;

        /* Judged by the status first: an error's body is read for its error word only. */
        if (status == 429 || status >= 500) {
                *ret_detail = "the token endpoint answered that it is unavailable";
                return TOKEN_UNAVAILABLE;
        }
        if (status != 200 && status != 201 && (status < 400 || status > 499)) {
                *ret_detail = "the token endpoint answered with an unexpected status";
                return TOKEN_BAD_ANSWER;
        }

        if (size > 0 && json_parse(body, size, &v, NULL) < 0)
                v = NULL;
        if (v)
                sd_json_variant_sensitive(v);

        if (status >= 400) {
                *ret_detail = known_error(json_string(v && sd_json_variant_is_object(v) ? v : NULL, "error"));
                return TOKEN_REFUSED;
        }
        if (!v || !sd_json_variant_is_object(v)) {
                *ret_detail = "the token endpoint's answer is not a JSON object";
                return TOKEN_BAD_ANSWER;
        }
        if (sd_json_variant_by_key(v, "error")) { /* 200 all the same: seen in the field */
                *ret_detail = known_error(json_string(v, "error"));
                return TOKEN_REFUSED;
        }

        type = json_string(v, "token_type");
        if (sd_json_variant_by_key(v, "token_type") && (!type || strcasecmp(type, "bearer") != 0)) {
                *ret_detail = "the token endpoint gave a token that is not of type Bearer";
                return TOKEN_BAD_ANSWER;
        }
        token = json_string(v, "access_token");
        if (!token || !token_is_valid(token, strlen(token))) {
                *ret_detail =
                        "the token endpoint gave no access token, or one with characters that no header can carry";
                return TOKEN_BAD_ANSWER;
        }
        if (life_parse(sd_json_variant_by_key(v, "expires_in"), &life) < 0) {
                *ret_detail = "the token endpoint gave an expires_in that is no number of seconds";
                return TOKEN_BAD_ANSWER;
        }

        if (secret_new_from(token, strlen(token), &s) < 0) {
                *ret_detail = "out of locked memory";
                return TOKEN_UNAVAILABLE;
        }

        *ret = s;
        *ret_life_sec = life;
        return TOKEN_OK;
}
