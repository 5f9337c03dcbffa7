/* The innermost loops. A panel is 32 columns of a weight matrix, packed so that it is read from front to
 * back, once:
 *
 *   FLOAT32   [k][32]            the columns' weights of one input side by side
 *   BFLOAT16  [k / 2][32][2]     pairs: those of two neighbouring inputs, as the instructions below want them
 *   SPLIT     [k / 32][2][16][32][2]  for each 32 inputs, the upper halves as pairs, then the lower ones
 *
 * With few rows, reading the panel is what takes the time; with many, the multiplications are, and then each
 * number that is loaded has to be used for several of them: sums of 8 x 32 products stay in registers (on
 * AVX-512), and for each input the panel's 32 weights meet 8 activations: 10 loads for 16 vector
 * multiplications. There is room for 12 rows' sums, but not for 12 rows' addresses: the loop would fetch them
 * again and again, and be a tenth slower.
 *
 *   FMA_*           sum += activation * weights, everywhere. A bfloat16 weight is the upper half of a
 *                   float32: a shift.
 *   DOT_BFLOAT16    AVX-512-BF16: sum += a0 * w0 + a1 * w1 for 16 pairs in one instruction: twice the rate on
 *                   some CPUs.
 *   TILES_BFLOAT16  AMX: a tile of 16 rows x 32 inputs times one of 32 inputs x 16 columns in one
 *                   instruction. Four tiles of sums, two of rows, two of weights: each tile that is loaded is
 *                   used twice.
 *   TILES_SPLIT     float32 by AMX: with a = a_high + a_low, w = w_high + w_low, three products of bfloat16
 *                   tiles, a_high w_low + a_high w_high + a_low w_high. What is left out, a_low w_low, is
 *                   less than 2^-16 of it. Source: Henry, Tang and Heinecke 2019, "Leveraging the bfloat16
 *                   Artificial Intelligence Datatype For Higher-Precision Computations".
 */
#include "product.h"
#if defined(__AMX_BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define VECS (PANEL / LANES)
#ifdef __AVX512F__
#define SUM_ROWS 8 /* 16 of 32 registers hold sums */
#define COLUMNS(rows) VECS
#else
#define SUM_ROWS 6 /* 12 of 16 registers */
#define COLUMNS(rows) ((rows) > 3 ? 2 : 4) /* not all of a panel's columns at once */
#endif

/* Whether this build, on this CPU, has a kind. Linux gives a process the tiles' 8 KB of registers only if it
 * asks. */
int has_kind(int kind) {
#if defined(__AMX_BF16__) && defined(__linux__)
    const int request = 0x1023 /* ARCH_REQ_XCOMP_PERM */, tile_data = 18;
    if (kind >= TILES_BFLOAT16) return syscall(SYS_arch_prctl, request, tile_data) == 0;
#endif
#ifdef __AVX512BF16__
    if (kind == DOT_BFLOAT16) return 1;
#endif
    return kind == FMA_FLOAT32 || kind == FMA_BFLOAT16;
}

int product_block(int kind) { return kind >= TILES_BFLOAT16 ? BLOCK : SUM_ROWS; }

/* For each part of a panel, COLUMNS vectors wide from column `from` on: begin with zeros, end with sums in
 * `out`. Unrolled, or the compiler would keep the sums in memory, where a loop could count through them. */
#define EACH_PART for (int from = 0; from < PANEL; from += COLUMNS(rows) * LANES)
#define ZERO_SUMS \
    vec sum[SUM_ROWS][VECS]; \
    _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++) \
        for (int v = 0; v < COLUMNS(rows); v++) sum[r][v] = (vec){0};
#define STORE_SUMS \
    _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++) \
        for (int v = 0; v < COLUMNS(rows); v++) store(out + r * out_stride + from + v * LANES, sum[r][v]);

INLINE void fma_float32(const float *x, int64_t stride, const float *panel, int64_t k, float *out,
                        int64_t out_stride, const char *ahead, int64_t step, const int rows) {
    EACH_PART {
        ZERO_SUMS
        for (int64_t i = 0; i < k; i++) {
            vec w[VECS];
            for (int v = 0; v < COLUMNS(rows); v++) w[v] = load(panel + i * PANEL + from + v * LANES);
            for (int at = 0; at < 128; at += 64) __builtin_prefetch(ahead + i * step + at, 0, 2);
            for (int r = 0; r < rows; r++)
                for (int v = 0; v < COLUMNS(rows); v++) sum[r][v] += x[r * stride + i] * w[v];
        }
        STORE_SUMS
    }
}

INLINE void fma_bfloat16(const float *x, int64_t stride, const uint16_t *panel, int64_t k, float *out,
                         int64_t out_stride, const char *ahead, int64_t step, const int rows) {
    EACH_PART {
        ZERO_SUMS
        for (int64_t i = 0; i < k; i += 2) {
            vec even[VECS], odd[VECS];
            for (int v = 0; v < COLUMNS(rows); v++) {
                const ivec pair = *(const ivec *)(panel + i * PANEL + 2 * (from + v * LANES));
                even[v] = (vec)(pair << 16), odd[v] = (vec)(pair & ~0xffff);
            }
            for (int at = 0; at < 128; at += 64) __builtin_prefetch(ahead + i / 2 * step + at, 0, 2);
            for (int r = 0; r < rows; r++)
                for (int v = 0; v < COLUMNS(rows); v++) sum[r][v] += x[r * stride + i] * even[v];
            for (int r = 0; r < rows; r++)
                for (int v = 0; v < COLUMNS(rows); v++) sum[r][v] += x[r * stride + i + 1] * odd[v];
        }
        STORE_SUMS
    }
}

#ifdef __AVX512BF16__
INLINE void dot_bfloat16(const uint16_t *x, int64_t stride, const uint16_t *panel, int64_t k, float *out,
                         int64_t out_stride, const char *ahead, int64_t step, const int rows) {
    EACH_PART {
        ZERO_SUMS
        for (int64_t i = 0; i < k; i += 2) {
            __m512bh w[VECS];
            for (int v = 0; v < VECS; v++)
                w[v] = (__m512bh)_mm512_loadu_si512(panel + i * PANEL + 2 * v * LANES);
            for (int at = 0; at < 128; at += 64) __builtin_prefetch(ahead + i / 2 * step + at, 0, 2);
            for (int r = 0; r < rows; r++) {
                int32_t pair;
                memcpy(&pair, x + r * stride + i, 4);
                const __m512bh pairs = (__m512bh)_mm512_set1_epi32(pair);
                for (int v = 0; v < VECS; v++)
                    sum[r][v] = (vec)_mm512_dpbf16_ps((__m512)sum[r][v], pairs, w[v]);
            }
        }
        STORE_SUMS
    }
}
#endif

#ifdef __AMX_BF16__
/* Sums are in tiles 0 to 3, rows in 4 and 5, weights in 6 and 7. Without `both`, only the first 16 rows are
 * there. */
#define MULTIPLY \
    _tile_dpbf16ps(0, 4, 6); \
    _tile_dpbf16ps(1, 4, 7); \
    if (both) { \
        _tile_dpbf16ps(2, 5, 6); \
        _tile_dpbf16ps(3, 5, 7); \
    }
#define LOAD_ROWS(from) \
    _tile_loadd(4, (from), stride); \
    if (both) { _tile_loadd(5, (from) + 16 * stride, stride); }
#define LOAD_WEIGHTS(from) \
    _tile_loadd(6, (from), 4 * PANEL); \
    _tile_loadd(7, (from) + 64, 4 * PANEL);
#define ASK(lines) \
    for (int64_t line = 0; line < (lines); line++) __builtin_prefetch(ahead + 64 * line, 0, 2); \
    ahead += 64 * (lines);
#define STORE_TILES \
    _tile_stored(0, out, 4 * out_stride); \
    _tile_stored(1, out + 16, 4 * out_stride); \
    if (both) { \
        _tile_stored(2, out + 16 * out_stride, 4 * out_stride); \
        _tile_stored(3, out + 16 * out_stride + 16, 4 * out_stride); \
    }
#define BEGIN_TILES \
    if (begin == 0) { \
        _tile_zero(0); \
        _tile_zero(1); \
        _tile_zero(2); \
        _tile_zero(3); \
    } else { \
        _tile_loadd(0, out, 4 * out_stride); \
        _tile_loadd(1, out + 16, 4 * out_stride); \
        if (both) { \
            _tile_loadd(2, out + 16 * out_stride, 4 * out_stride); \
            _tile_loadd(3, out + 16 * out_stride + 16, 4 * out_stride); \
        } \
    }

INLINE void tiles_bfloat16(const char *x, int64_t stride, const char *panel, int64_t begin, int64_t k,
                           float *out, int64_t out_stride, const char *ahead, int64_t lines, const int both) {
    BEGIN_TILES
    for (int64_t i = begin; i < k; i += 32) {
        LOAD_ROWS(x + 2 * i)
        ASK(lines / 2)
        LOAD_WEIGHTS(panel + 2 * PANEL * i)
        ASK(lines - lines / 2)
        MULTIPLY
    }
    STORE_TILES
}

INLINE void tiles_split(const char *x, int64_t stride, int64_t plane, const char *panel, int64_t begin,
                        int64_t k, float *out, int64_t out_stride, const char *ahead, int64_t lines,
                        const int both) {
    BEGIN_TILES
    for (int64_t i = begin; i < k; i += 32) {
        const char *high = panel + 4 * PANEL * i, *low = high + 2 * PANEL * 32;
        LOAD_ROWS(x + 2 * i)
        LOAD_WEIGHTS(low)
        ASK(lines / 3)
        MULTIPLY
        LOAD_WEIGHTS(high)
        ASK(lines / 3)
        MULTIPLY
        LOAD_ROWS(x + plane + 2 * i)
        ASK(lines - lines / 3 * 2)
        MULTIPLY
    }
    STORE_TILES
}
#endif

void begin_products(int kind) {
#ifdef __AMX_BF16__
    if (kind < TILES_BFLOAT16) return;
    typedef struct { uint8_t palette, start, none[14]; uint16_t width[16]; uint8_t height[16]; } Shape;
    static const Shape shape = {
        .palette = 1, .width = {[0 ... 7] = 64 /* bytes */}, .height = {[0 ... 7] = 16 /* rows */}};
    _tile_loadconfig(&shape);
#endif
}

void end_products(int kind) {
#ifdef __AMX_BF16__
    if (kind >= TILES_BFLOAT16) _tile_release();
#endif
}

void product(int kind, const Rows *rows, int64_t first, int count, const void *panel, int64_t begin,
             int64_t end, float *out, int64_t stride, const void *ahead, float share) {
    const char *x = rows->data + first * rows->stride;
    const int64_t k = round_up(end, GROUP);
    const int64_t step = (int64_t)(128 * share); /* bytes ahead, for each 128 of the panel */
#define ONE(function, type, weight, n) \
    case n: \
        function((const type *)x, rows->stride / (int64_t)sizeof(type), (const weight *)panel, k, out, \
                 stride, ahead, step, n); \
        break;
#ifdef __AVX512F__
#define MORE(function, type, weight) ONE(function, type, weight, 7) ONE(function, type, weight, 8)
#else
#define MORE(function, type, weight)
#endif
    /* Each number of rows becomes a loop of its own, with its sums in registers. */
#define EACH(function, type, weight) \
    switch (count) { \
        ONE(function, type, weight, 1) ONE(function, type, weight, 2) ONE(function, type, weight, 3) \
        ONE(function, type, weight, 4) ONE(function, type, weight, 5) ONE(function, type, weight, 6) \
        MORE(function, type, weight) \
    }
    if (kind == FMA_FLOAT32) EACH(fma_float32, float, float)
    if (kind == FMA_BFLOAT16) EACH(fma_bfloat16, float, uint16_t)
#ifdef __AVX512BF16__
    if (kind == DOT_BFLOAT16) EACH(dot_bfloat16, uint16_t, uint16_t)
#endif
#ifdef __AMX_BF16__
    const int64_t lines = (int64_t)((kind == TILES_SPLIT ? 64 : 32) * share); /* ahead, for each 32 inputs */
#define BY_TILES(function, ...) \
    if (count > 16) function(x, __VA_ARGS__, panel, begin, k, out, stride, ahead, lines, 1); \
    else function(x, __VA_ARGS__, panel, begin, k, out, stride, ahead, lines, 0);
    if (kind == TILES_BFLOAT16) { BY_TILES(tiles_bfloat16, rows->stride) }
    if (kind == TILES_SPLIT) { BY_TILES(tiles_split, rows->stride, rows->plane) }
#endif
}
