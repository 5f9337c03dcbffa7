/* Weights -> panels (see product.c), once, when a model is loaded, without a copy of the matrix in between. */
#include "kernels.h"

/* weight: of the panel's first column. Columns from `columns` on, and inputs from `in` on, become zeros. */
INLINE void pack_panel(char *panel, const char *weight, const int format, int64_t out_stride, int64_t in_stride,
                       int64_t columns, int64_t in, const int kind) {
    for (int64_t i = 0; i < round_up(in, PAD_INPUTS); i++)
        for (int64_t c = 0; c < PANEL; c++) {
            const int64_t from = c * out_stride + i * in_stride, to = place(kind, i, c); /* indices, not bytes */
            const float x = i < in && c < columns ? fetch_one(weight, from, format) : 0;
            if (kind == FMA_FLOAT32) ((float *)panel)[to] = x;
            else {
                const hvec high = to_bfloat16(splat(x)), low = to_bfloat16(splat(x) - fetch(&high, BFLOAT16));
                ((uint16_t *)panel)[to] = high[0];
                if (kind == TILES_SPLIT) ((uint16_t *)panel)[to + 32 * PANEL] = low[0];
            }
        }
}

void pack(const Team *team, char *panels, const char *weight, int64_t format, int64_t out_stride,
          int64_t in_stride, int64_t out, int64_t in, int kind) {
    PARALLEL_FOR(p, (out + PANEL - 1) / PANEL, team) {
        const int64_t columns = out - p * PANEL < PANEL ? out - p * PANEL : PANEL;
        const char *from = weight + p * PANEL * out_stride * size_of((int)format);
        char *panel = panels + p * panel_bytes(kind, in);
        /* Constants: a routine for each pair of a format and a layout. All bfloat16 kinds have the same layout. */
#define PACK(format, kind) \
    case kind: pack_panel(panel, from, format, out_stride, in_stride, columns, in, kind); break;
#define PACK_FROM(format) \
    switch (kind == DOT_BFLOAT16 || kind == TILES_BFLOAT16 ? FMA_BFLOAT16 : kind) { \
        PACK(format, FMA_FLOAT32) PACK(format, FMA_BFLOAT16) PACK(format, TILES_SPLIT) \
    }
        if (format == FLOAT32) PACK_FROM(FLOAT32)
        if (format == BFLOAT16) PACK_FROM(BFLOAT16)
        if (format == FLOAT16) switch (kind) { PACK(FLOAT16, FMA_FLOAT32) PACK(FLOAT16, TILES_SPLIT) }
    }
    barrier(team);
}
