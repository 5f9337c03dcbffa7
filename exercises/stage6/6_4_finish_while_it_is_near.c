/* Exercise 6.4, finish while it is near. Instructions: 6_4_finish_while_it_is_near.md. */
#include <math.h>

#include "linear.h"

/* --- Given: the sums of a group of rows, as in 6.3 --- */

/* The sums of `count` rows and a panel. `count` is a constant where this is inlined: the loops over it are unrolled, and
 * the sums stay in registers. */
INLINE void sums_of(const float *x, const float *panel, int64_t in, float sums[][PANEL], const int count) {
    vec sum[GROUP][PANEL / LANES] = {0};
    for (int64_t i = 0; i < in; i++)
        _Pragma("GCC unroll 4") for (int v = 0; v < PANEL / LANES; v++) {
            const vec weights = *(const vec *)(panel + i * PANEL + v * LANES);
            _Pragma("GCC unroll 8") for (int t = 0; t < count; t++) sum[t][v] += x[t * in + i] * weights;
        }
    for (int t = 0; t < count; t++)
        for (int v = 0; v < PANEL / LANES; v++) *(vec *)(sums[t] + v * LANES) = sum[t][v];
}

/* [count][in] and a panel -> sums [count][PANEL], for 1 to GROUP rows. */
static void group_of(const float *x, const float *panel, int64_t in, float sums[][PANEL], int64_t count) {
    switch (count) {
        case 1: sums_of(x, panel, in, sums, 1); break;
        case 2: sums_of(x, panel, in, sums, 2); break;
        case 3: sums_of(x, panel, in, sums, 3); break;
#if GROUP > 3
        case 4: sums_of(x, panel, in, sums, 4); break;
        case 5: sums_of(x, panel, in, sums, 5); break;
        case 6: sums_of(x, panel, in, sums, 6); break;
        case 7: sums_of(x, panel, in, sums, 7); break;
        case 8: sums_of(x, panel, in, sums, 8); break;
#endif
    }
}

/* --- To write --- */

/* y = finish(x W^T + bias), or with ADD y += x W^T + bias. [n][in] -> [n][out] */
void fused(const float *x, const float *panels, const float *bias, float *y,
           int64_t n, int64_t in, int64_t out, int64_t finish) {
    NOT_WRITTEN;
}
