/* Rows of activations times one panel of packed weights: linear.c and prefill_attention.c are made of this. */
#ifndef PRODUCT_H
#define PRODUCT_H
#include "vectors.h"

#define PANEL 32  /* columns of a panel */
#define GROUP 32  /* what a panel's length is a multiple of */
#define BLOCK 32  /* most rows of a call */

/* How to multiply; see product.c. */
enum { FMA_FLOAT32, FMA_BFLOAT16, DOT_BFLOAT16, TILES_BFLOAT16, TILES_SPLIT };

/* The formats of a kind's rows and panels. */
INLINE int rows_format(int kind) {
    return (const int[]){FLOAT32, FLOAT32, BFLOAT16, BFLOAT16, SPLIT}[kind];
}
INLINE int panel_format(int kind) {
    return (const int[]){FLOAT32, BFLOAT16, BFLOAT16, BFLOAT16, SPLIT}[kind];
}
INLINE int64_t panel_bytes(int kind, int64_t k) {
    const int format = panel_format(kind);
    return PANEL * round_up(k, GROUP) * (format == FLOAT32 || format == SPLIT ? 4 : 2);
}

int has_kind(int kind);
int in_parts(int kind, int rows); /* whether a pass reads a panel's columns part by part */
int product_block(int kind); /* how many rows make the best of a pass over a panel */

/* out[r][c] = sum over i of rows[first + r][i] * panel[i][c], for r < count <= BLOCK, c < PANEL.
 *
 * begin, end: the i's. begin is a multiple of GROUP; if it is not 0, the sum is added to what is in `out`.
 * panel: the weights from input `begin` on.
 * stride: floats from one row of `out` to the next. Tiles also read and overwrite rows up to the next multiple of 16,
 * for which there must be memory.
 * ahead: memory to prefetch: `share` of panel_bytes, from 0 (nothing) to 1. */
void product(int kind, const Rows *rows, int64_t first, int count, const void *panel, int64_t begin,
             int64_t end, float *out, int64_t stride, const void *ahead, float share);

/* k inputs of a panel of FMA_BFLOAT16 -> one of FMA_FLOAT32. */
void widen(const void *panel, int64_t k, float *wide);

void begin_products(int kind); /* in each thread, before its products and after them */
void end_products(int kind);
#endif
