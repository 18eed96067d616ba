/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* Proves that a limiter lets through so many in a time and at once, gives back what is released, and forgets those that
 * say nothing. Time is the test's own. */

#include "limiter.h"

#define SEC USEC_PER_SEC

int main(void) {
        _cleanup_(limit_table_freep) LimitTable *t = limit_table_new();
        const Limit rate = { .rate = 10, .burst = 3 }, two = { .concurrent = 2 }, none = {};
        Lease l[5] = {};
        uint64_t retry = 0;

        assert(t);

        /* A burst, then one each 100 ms. */
        for (int i = 0; i < 3; i++) {
                assert(limit_take(t, "a", &rate, SEC, &l[0], 0, &retry) == 0);
                lease_release(&l[0]);
        }
        assert(limit_take(t, "a", &rate, SEC, &l[0], 0, &retry) == -EAGAIN && retry == 100000);
        assert(limit_take(t, "a", &rate, SEC + 99999, &l[0], 0, &retry) == -EAGAIN && retry == 1);
        assert(limit_take(t, "a", &rate, SEC + 100000, &l[0], 0, &retry) == 0);
        lease_release(&l[0]);
        assert(limit_take(t, "a", &rate, SEC + 100000, &l[0], 0, &retry) == -EAGAIN);
        /* Others are others. */
        assert(limit_take(t, "b", &rate, SEC + 100000, &l[0], 0, &retry) == 0);
        lease_release(&l[0]);
        /* Never more than a burst, however long it was quiet; a clock that stands still gives nothing. */
        for (int i = 0; i < 3; i++) {
                assert(limit_take(t, "a", &rate, 1000 * SEC, &l[0], 0, &retry) == 0);
                lease_release(&l[0]);
        }
        assert(limit_take(t, "a", &rate, 1000 * SEC, &l[0], 0, &retry) == -EAGAIN);
        assert(limit_take(t, "a", &rate, 999 * SEC, &l[0], 0, &retry) == -EAGAIN);

        /* So many at once. */
        assert(limit_take(t, "c", &two, 0, &l[0], 1, &retry) == 0);
        assert(limit_take(t, "c", &two, 0, &l[1], 1, &retry) == 0);
        assert(limit_take(t, "c", &two, 0, &l[2], 1, &retry) == -EBUSY);
        lease_release(&l[0]);
        lease_release(&l[0]);
        assert(limit_take(t, "c", &two, 0, &l[2], 1, &retry) == 0);
        assert(limit_take(t, "c", &two, 0, &l[3], 1, &retry) == -EBUSY);

        /* No limit costs nothing. */
        size_t n = limit_table_size(t);
        assert(limit_take(t, "d", &none, 0, &l[3], 2, &retry) == 0 && limit_table_size(t) == n);
        assert(!l[3].limiters[2]);
        lease_release(&l[1]);
        lease_release(&l[2]);

        /* A stranger with many names does not fill our memory. */
        for (unsigned i = 0; i < 20000; i++) {
                char key[32];

                snprintf(key, sizeof(key), "k%u", i);
                assert(limit_take(t, key, &rate, 2000 * SEC + i * SEC, &l[0], 0, &retry) == 0);
                lease_release(&l[0]);
        }
        assert(limit_table_size(t) < 3000);
        return 0;
}
