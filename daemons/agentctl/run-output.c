/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See run-output.h. */

#include "run-output.h"

#include "basic/string-util.h"
#include "output.h"

int run_output_get(Client *c, const char *id, sd_json_variant **ret) {
        _cleanup_free_ char *text = NULL;
        int r;

        r = client_call_string(c, "GetResult", id, &text);
        if (r < 0)
                return r;
        if (isempty(text)) {
                *ret = NULL;
                return 0;
        }
        r = sd_json_parse(text, 0, ret, NULL, NULL);
        if (r < 0)
                return client_bad_reply(r);
        return 0;
}

static const char *member(sd_json_variant *document, const char *key) {
        sd_json_variant *v = sd_json_variant_by_key(document, key);

        return v && sd_json_variant_is_string(v) ? sd_json_variant_string(v) : "";
}

int run_output_print(Client *c, sd_json_variant *document) {
        sd_json_variant *output = document ? sd_json_variant_by_key(document, "output") : NULL;
        const char *message;
        int r = 0;

        if (output && sd_json_variant_is_string(output))
                r = output_text(c, sd_json_variant_string(output));
        else if (output && !sd_json_variant_is_null(output))
                r = output_json(c, output);
        if (r < 0 || !document || client_quiet(c) || !streq(member(document, "status"), "success"))
                return r;
        message = member(document, "message");
        if (!isempty(message))
                notice("%s", message);
        return 0;
}
