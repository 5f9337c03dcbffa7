/* A linear layer, five times: a plain loop, and what each idea of stage 6 changes in it. Compiled by layer.py.
 *
 * All compute y[t][o] += bias[o] + the sum over i of x[t][i] * weight[o][i], which is a layer whose result is
 * added to the residual stream. They differ in the order in which they read. */
#include <stdint.h>
#include <stdlib.h>

#define INLINE static inline __attribute__((always_inline))
#define PANEL 32 /* columns that are computed together */
#ifdef __AVX512F__
#define LANES 16 /* numbers of a vector register */
#define GROUP 8  /* tokens that are computed together: their sums take 16 of 32 registers */
#else
#define LANES 8
#define GROUP 3 /* 12 of 16 registers */
#endif

/* 1. Token by token, output by output. */
void plain(const float *x, const float *weight, const float *bias, float *y,
           int64_t n, int64_t in, int64_t out) {
    for (int64_t t = 0; t < n; t++)
        for (int64_t o = 0; o < out; o++) {
            float sum = 0;
            for (int64_t i = 0; i < in; i++) sum += x[t * in + i] * weight[o * in + i];
            y[t * out + o] += sum + bias[o];
        }
}

/* The weights as panels, once: [out][in] -> [out / PANEL][in][PANEL]. out is a multiple of PANEL. */
void pack(const float *weight, float *panels, int64_t in, int64_t out) {
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++) panels[(o / PANEL * in + i) * PANEL + o % PANEL] = weight[o * in + i];
}

/* 2. Packed: 32 sums grow side by side, and the weights of a panel are read from front to back. */
void packed(const float *x, const float *panels, const float *bias, float *y,
            int64_t n, int64_t in, int64_t out) {
    for (int64_t t = 0; t < n; t++)
        for (int64_t o = 0; o < out; o += PANEL) {
            const float *panel = panels + o * in;
            float sum[PANEL] = {0};
            for (int64_t i = 0; i < in; i++)
                for (int c = 0; c < PANEL; c++) sum[c] += x[t * in + i] * panel[i * PANEL + c];
            for (int c = 0; c < PANEL; c++) y[t * out + o + c] += sum[c] + bias[o + c];
        }
}

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));

/* The sums of `count` tokens and a panel. `count` is a constant where this is inlined: the loops over it are unrolled,
 * and the sums stay in registers. */
INLINE void sums_of(const float *x, const float *panel, int64_t in, float out[][PANEL], const int count) {
    vec sum[GROUP][PANEL / LANES] = {0};
    for (int64_t i = 0; i < in; i++)
        _Pragma("GCC unroll 4") for (int v = 0; v < PANEL / LANES; v++) {
            const vec weights = *(const vec *)(panel + i * PANEL + v * LANES);
            _Pragma("GCC unroll 8") for (int t = 0; t < count; t++) sum[t][v] += x[t * in + i] * weights;
        }
    for (int t = 0; t < count; t++)
        for (int v = 0; v < PANEL / LANES; v++) *(vec *)(out[t] + v * LANES) = sum[t][v];
}

/* A group of tokens, or what is left at the end one by one. */
static void group_of(const float *x, const float *panel, int64_t in, float out[][PANEL], int64_t count) {
    if (count == GROUP) sums_of(x, panel, in, out, GROUP);
    else
        for (int64_t t = 0; t < count; t++) sums_of(x + t * in, panel, in, out + t, 1);
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* 3. Grouped: each weight that is read is used for all tokens of a group. Then comes a pass over the product. */
void grouped(const float *x, const float *panels, const float *bias, float *y,
             int64_t n, int64_t in, int64_t out) {
    float *product = malloc(sizeof(float) * (size_t)(n * out));
    for (int64_t o = 0; o < out; o += PANEL)
        for (int64_t t = 0; t < n; t += GROUP) {
            float sums[GROUP][PANEL];
            const int64_t count = least(n - t, GROUP);
            group_of(x + t * in, panels + o * in, in, sums, count);
            for (int64_t k = 0; k < count; k++)
                for (int c = 0; c < PANEL; c++) product[(t + k) * out + o + c] = sums[k][c];
        }
    for (int64_t t = 0; t < n; t++)
        for (int64_t o = 0; o < out; o++) y[t * out + o] += product[t * out + o] + bias[o];
    free(product);
}

/* A panel for all tokens, with what follows the product while its sums are still near. */
static void one_panel(const float *x, const float *panel, const float *bias, float *y,
                      int64_t n, int64_t in, int64_t out) {
    for (int64_t t = 0; t < n; t += GROUP) {
        float sums[GROUP][PANEL];
        const int64_t count = least(n - t, GROUP);
        group_of(x + t * in, panel, in, sums, count);
        for (int64_t k = 0; k < count; k++)
            for (int c = 0; c < PANEL; c++) y[(t + k) * out + c] += sums[k][c] + bias[c];
    }
}

/* 4. Fused: no pass over the result. */
void fused(const float *x, const float *panels, const float *bias, float *y,
           int64_t n, int64_t in, int64_t out) {
    for (int64_t o = 0; o < out; o += PANEL) one_panel(x, panels + o * in, bias + o, y + o, n, in, out);
}

/* 5. Shared: every thread takes one panel after another. */
void shared(const float *x, const float *panels, const float *bias, float *y,
            int64_t n, int64_t in, int64_t out) {
    _Pragma("omp parallel for schedule(dynamic)")
    for (int64_t o = 0; o < out; o += PANEL) one_panel(x, panels + o * in, bias + o, y + o, n, in, out);
}
