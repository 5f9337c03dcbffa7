/* Reading memory in two ways. Compiled by caches.py. */
#include <stdint.h>

typedef int64_t vec __attribute__((vector_size(__BIGGEST_ALIGNMENT__))); /* as wide as the CPU's registers */

/* Read everything, front to back, `times` times. Eight sums: no load waits for the one before it. */
int64_t stream(const vec *data, int64_t bytes, int64_t times) {
    const int64_t n = bytes / (int64_t)sizeof(vec);
    vec sum[8] = {0};
    for (int64_t t = 0; t < times; t++) {
        for (int64_t i = 0; i < n; i += 8)
            for (int j = 0; j < 8; j++) sum[j] ^= data[i + j];
        __asm__ volatile("" ::: "memory"); /* or the compiler would read once for all times */
    }
    int64_t all = 0;
    for (int j = 0; j < 8; j++) all ^= sum[j][0];
    return all;
}

/* Read pieces of `bytes`, front to back each, in this order. */
int64_t pieces(const char *data, int64_t bytes, const int64_t *order, int64_t count) {
    int64_t all = 0;
    for (int64_t i = 0; i < count; i++) all ^= stream((const vec *)(data + order[i] * bytes), bytes, 1);
    return all;
}

/* Follow a chain from place `at`: each says where the next one is, so each load waits for the one before it. */
int64_t chase(const int64_t *next, int64_t at, int64_t steps) {
    for (int64_t i = 0; i < steps; i++) at = next[at];
    return at;
}
