/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "audit.h"

static void expect(const Text *t, const char *text, size_t size) {
        assert(text_size(t) == size);
        assert(memcmp(t->start, text, size) == 0);
}

static void test_text(void) {
        char buf[8];
        Text t = text_in(buf, sizeof(buf));

        text_add(&t, "abc");
        text_add_u64(&t, 0);
        text_add_u64(&t, 107);
        assert(strcmp(text_end(&t), "abc0107") == 0 && !t.cut);
        text_add(&t, "");
        assert(!t.cut);
        text_add(&t, "x"); /* the last byte is the NUL's */
        assert(t.cut && strcmp(text_end(&t), "abc0107") == 0);

        char large[32];
        t = text_in(large, sizeof(large));
        text_add_u64(&t, UINT64_MAX);
        assert(strcmp(text_end(&t), "18446744073709551615") == 0);
}

static void test_fields(void) {
        char buf[64];
        Text t = text_in(buf, sizeof(buf));

        audit_add(&t, "A", "one");
        audit_add_u64(&t, "B", 42);
        audit_add(&t, "EMPTY", "");
        expect(&t, "A=one\nB=42\nEMPTY=\n", 18);

        /* A line feed neither ends a value nor begins a field. */
        t = text_in(buf, sizeof(buf));
        audit_add(&t, "A", "x\nB=y");
        audit_add(&t, "C", "z");
        expect(&t, "A\n\5\0\0\0\0\0\0\0x\nB=y\nC=z\n", 20);
}

/* What does not fit is left out whole. */
static void test_cut(void) {
        char buf[16];
        Text t = text_in(buf, sizeof(buf));

        audit_add(&t, "A", "one");
        audit_add(&t, "LONG", "0123456789");
        assert(t.cut);
        audit_add(&t, "B", "two");
        assert(t.cut);
        expect(&t, "A=one\nB=two\n", 12);
}

int main(void) {
        test_text();
        test_fields();
        test_cut();
        return EXIT_SUCCESS;
}
