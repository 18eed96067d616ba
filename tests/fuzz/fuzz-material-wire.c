/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* Packets between bridge and strong room: what is taken for one is what its contents would be written as again, to the
 * byte, so there are no two readings and no bytes that nobody looks at. So it is with several in one packet. */

#include "material/material-wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        static char again[MATERIAL_ANSWER_MAX];
        MaterialQuestion questions[MATERIAL_BATCH_MAX];
        MaterialAnswer answers[MATERIAL_BATCH_MAX];
        size_t at = 0;
        ssize_t k = 0;
        char *exact = malloc(size ?: 1);

        assert(exact);
        if (size > 0)
                memcpy(exact, data, size);
        int n = material_questions_decode(exact, size, questions);
        assert(n != 0);
        for (int i = 0; i < n; i++, at += (size_t) k) {
                k = material_question_encode(questions + i, again + at, sizeof(again) - at);
                assert(k > 0 && at + (size_t) k <= size && memcmp(again + at, exact + at, (size_t) k) == 0);
                assert(material_question_encode(questions + i, again + at, (size_t) k - 1) == -EMSGSIZE);
        }
        assert(n < 0 || at == size);

        at = 0;
        n = material_answers_decode(exact, size, answers);
        assert(n != 0);
        for (int i = 0; i < n; i++, at += (size_t) k) {
                k = material_answer_encode(answers + i, again + at, sizeof(again) - at);
                assert(k > 0 && at + (size_t) k <= size && memcmp(again + at, exact + at, (size_t) k) == 0);
                assert(material_answer_encode(answers + i, again + at, (size_t) k - 1) == -EMSGSIZE);
        }
        assert(n < 0 || at == size);
        free(exact);
        return 0;
}
