/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See run-output.h. */

#include "run-output.h"

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

int run_output_print(Client *c, sd_json_variant *document) {
        sd_json_variant *output = document ? sd_json_variant_by_key(document, "output") : NULL;

        if (!output || sd_json_variant_is_null(output))
                return 0;
        if (sd_json_variant_is_string(output))
                return output_text(c, sd_json_variant_string(output));
        return output_json(c, output);
}
