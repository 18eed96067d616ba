/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* Packets between bridge and strong room: what is taken for one is what its contents would be written as again, to the
 * byte, so there are no two readings and no bytes that nobody looks at. */

#include "material/material-wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        static char again[MATERIAL_ANSWER_MAX];
        MaterialQuestion q;
        MaterialAnswer a;
        char *exact = malloc(size ?: 1);

        assert(exact);
        if (size > 0)
                memcpy(exact, data, size);
        if (material_question_decode(exact, size, &q) >= 0) {
                assert(material_question_encode(&q, again, sizeof(again)) == (ssize_t) size);
                assert(memcmp(again, exact, size) == 0);
                assert(material_question_encode(&q, again, size - 1) == -EMSGSIZE);
        }
        if (material_answer_decode(exact, size, &a) >= 0) {
                assert(material_answer_encode(&a, again, sizeof(again)) == (ssize_t) size);
                assert(memcmp(again, exact, size) == 0);
                assert(material_answer_encode(&a, again, size - 1) == -EMSGSIZE);
        }
        free(exact);
        return 0;
}
