/* A linear layer with packed weights, for linear.py. Everything in this directory is compiled into one library, with
 * `-O3 -march=native -fopenmp`, when the engine starts.
 *
 * Your answers to exercises 6.2 to 6.5 are most of it: the sums of a group of rows and a panel (6.3), finished while they
 * are near (6.4). Threads that share the panels are one line before the loop over panels:
 *
 *     _Pragma("omp parallel for schedule(dynamic) num_threads((int)num_threads)") */
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#define PANEL 32 /* columns of a panel */
#ifdef __AVX512F__
#define LANES 16 /* numbers of a vector register */
#define GROUP 8  /* rows that are computed together: their sums take 16 of 32 registers */
#else
#define LANES 8
#define GROUP 3 /* 12 of 16 registers */
#endif

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias)); /* as in exercise 6.3 */

/* The weights as panels; columns that don't exist are 0. [out][in] -> [out / PANEL, rounded up][in][PANEL] */
void pack(const float *weight, float *panels, int64_t in, int64_t out);

/* y = x W^T + bias. [n][in] -> [n][out] */
void linear(const float *x, const float *panels, const float *bias, float *y,
            int64_t n, int64_t in, int64_t out, int64_t num_threads);

/* --- To write --- */

void pack(const float *weight, float *panels, int64_t in, int64_t out) {
    for (int64_t o = 0; o < out; o += PANEL)
        for (int64_t i = 0; i < in; i++)
            for (int64_t c = o; c < o + PANEL; c++) *panels++ = c < out ? weight[c * in + i] : 0;
}

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

/* A function for each number of rows. */
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

void linear(const float *x, const float *panels, const float *bias, float *y,
            int64_t n, int64_t in, int64_t out, int64_t num_threads) {
    _Pragma("omp parallel for schedule(dynamic) num_threads((int)num_threads)")
    for (int64_t o = 0; o < out; o += PANEL)
        for (int64_t t = 0; t < n; t += GROUP) {
            float sums[GROUP][PANEL];
            const int64_t count = n - t < GROUP ? n - t : GROUP;
            group_of(x + t * in, panels + o * in, in, sums, count);
            for (int64_t k = 0; k < count; k++)
                for (int64_t c = 0; c < PANEL && o + c < out; c++) y[(t + k) * out + o + c] = sums[k][c] + bias[o + c];
        }
}
