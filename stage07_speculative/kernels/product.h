/* Rows of activations times one panel of packed weights: linear.c and prefill_attention.c are made of this. */
#ifndef PRODUCT_H
#define PRODUCT_H
#include "vectors.h"

#define PANEL 32  /* columns of a panel */
#define PAD_INPUTS 32  /* a panel's inputs are padded with zeros to a multiple of this */
#define BLOCK 32  /* the most rows in a call */

/* How to multiply; see product.c. */
enum { FMA_FLOAT32, FMA_BFLOAT16, DOT_BFLOAT16, /* by vectors */ TILES_BFLOAT16, TILES_SPLIT };

/* The formats of a kind's rows and panels. */
INLINE int rows_format(int kind) {
    return (const int[]){FLOAT32, FLOAT32, BFLOAT16, BFLOAT16, SPLIT}[kind];
}
INLINE int panel_format(int kind) {
    return (const int[]){FLOAT32, BFLOAT16, BFLOAT16, BFLOAT16, SPLIT}[kind];
}
INLINE int64_t panel_bytes(int kind, int64_t k) {
    const int format = panel_format(kind);
    return PANEL * round_up(k, PAD_INPUTS) * (format == FLOAT32 || format == SPLIT ? 4 : 2);
}

/* The index in a panel of the weight of input i and column c, in numbers of its format; of a SPLIT, its upper half. */
INLINE int64_t place(int kind, int64_t i, int64_t c) {
    switch (kind) {
        case FMA_FLOAT32: return i * PANEL + c;
        case TILES_SPLIT: return (i / 32 * 64 + i % 32) / 2 * PANEL * 2 + c * 2 + i % 2;
        default: return (i / 2 * PANEL + c) * 2 + i % 2;
    }
}

int has_kind(int kind);
int in_parts(int kind, int rows); /* whether a pass reads a panel's columns part by part */
int64_t product_block(int kind, int64_t count); /* rows in a pass, so that few and even passes cover `count` rows */

/* out[r][c] = sum over i of rows[first + r][i] * panel[i][c], for r < count, c < PANEL.
 *
 * count: rows, at most as many as product_block says.
 * begin, end: of i. begin is a multiple of PAD_INPUTS; if it is not 0, the sum is added to `out`.
 * panel: the weights from input `begin` on.
 * stride: floats from one row of `out` to the next. Tiles also read rows, and overwrite rows of `out`, up to the next
 * multiple of 16, so these must be in memory.
 * prefetch: what is needed next. A call prefetches as many bytes of it as it reads of `panel`, times prefetch_fraction
 * (0 to 1). */
void product(int kind, const Rows *rows, int64_t first, int count, const void *panel, int64_t begin, int64_t end,
             float *out, int64_t stride, const void *prefetch, float prefetch_fraction);

/* The first k inputs of an FMA_BFLOAT16 panel -> an FMA_FLOAT32 panel. */
void widen(const void *panel, int64_t k, float *wide);

void begin_products(int kind); /* each thread calls these before and after its products */
void end_products(int kind);
#endif
