/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* Four bytes an act: take a place, give places back, let time pass. Against a plain model: never more at once than
 * allowed, never more in a time than rate and burst let through, and who gives back and waits can always come again.
 * */

#include "limiter.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define N 8U

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        static const char *const keys[N] = { "a", "b", "c", "d", "e", "f", "g", "h" };
        _cleanup_(limit_table_freep) LimitTable *t = limit_table_new();
        Lease leases[16] = {};
        unsigned holder[16][3] = {}, active[N] = {}; /* holder: key + 1 */
        uint64_t taken[N] = {}, now = 1000 * USEC_PER_SEC, start = now;
        Limit limits[N];

        assert(t);
        for (unsigned i = 0; i < N; i++) {
                uint8_t b = i < size ? data[i] : 0;
                limits[i] = (Limit) { .rate = b & 7, .burst = (b >> 3) & 3, .concurrent = b >> 5 };
        }
        for (size_t at = N; at + 4 <= size; at += 4) {
                unsigned lease = data[at + 1] % 16, key = data[at + 2] % N, slot = data[at + 3] % 3;
                uint64_t retry = UINT64_MAX;
                int r;

                switch (data[at] % 4) {
                case 0:
                case 1:
                        if (holder[lease][slot] || leases[lease].limiters[slot])
                                break;
                        r = limit_take(t, keys[key], &limits[key], now, &leases[lease], slot, &retry);
                        if (r == -EBUSY)
                                assert(limits[key].concurrent > 0 && active[key] == limits[key].concurrent);
                        else if (r == -EAGAIN) {
                                assert(limits[key].rate > 0 && retry > 0 && retry <= USEC_PER_SEC);
                                assert(!leases[lease].limiters[slot]);
                        } else {
                                assert(r == 0);
                                if (limits[key].rate == 0 && limits[key].concurrent == 0)
                                        break;
                                holder[lease][slot] = key + 1;
                                active[key]++;
                                taken[key]++;
                                assert(limits[key].concurrent == 0 || active[key] <= limits[key].concurrent);
                                if (limits[key].rate > 0)
                                        assert(taken[key] <= (limits[key].burst ?: limits[key].rate) + 1 +
                                                                     (now - start) * limits[key].rate / USEC_PER_SEC);
                        }
                        break;
                case 2:
                        lease_release(&leases[lease]);
                        for (unsigned i = 0; i < 3; i++) {
                                if (holder[lease][i])
                                        active[holder[lease][i] - 1]--;
                                holder[lease][i] = 0;
                        }
                        break;
                case 3:
                        now += (uint64_t) data[at + 1] * data[at + 2] * 1000;
                }
        }

        for (unsigned i = 0; i < 16; i++)
                lease_release(&leases[i]);
        now += 100 * USEC_PER_SEC;
        for (unsigned i = 0; i < N; i++) {
                uint64_t retry;
                assert(limit_take(t, keys[i], &limits[i], now, &leases[0], 0, &retry) == 0);
                lease_release(&leases[0]);
        }
        return 0;
}
