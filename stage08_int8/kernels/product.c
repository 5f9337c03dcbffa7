/* The innermost loops. A panel is 32 columns of a weight matrix, packed so that it is read once, from front to back:
 *
 *   FLOAT32   [k][32]            the 32 weights of each input
 *   BFLOAT16  [k / 2][32][2]     the weights of two neighboring inputs in pairs, as the instructions below need them
 *   SPLIT     [k / 32][2][16][32][2]  for each 32 inputs, the upper halves as pairs, then the lower ones
 *   INT8      [k / 4][32][4]     the weights of four neighboring inputs together
 *             [k / 2][32][2]     for PAIRS_INT8, of two
 *
 * The order of a sum depends on the kind alone: input after input (or pair by pair, tile by tile), from the first on.
 * It does not depend on the number of rows, nor on how a panel is cut into parts and pieces. So a row's sums have the
 * same bits alone and next to any others.
 *
 * With few rows, most of the time goes into reading the panel. With many, it goes into multiplications, and each number
 * that is loaded has to serve several of them: a block of sums stays in registers while the loop runs over the inputs.
 *
 *   AVX-512   8 rows x 32 columns in 16 of 32 registers: 10 loads and 16 vector multiplications for each input.
 *             The sums of 12 rows would fit, but not their addresses: the loop would reload them, and be a tenth
 *             slower.
 *   AVX2      6 rows x 16 columns in 12 of 16 registers, as in BLIS (Van Zee and van de Geijn 2015): 8 loads
 *             for 12 multiplications. A cycle can start two of these, and six instructions of any kind, which leaves
 *             little for the rest. So the loop is unrolled by four inputs, and the multiplication is written in
 *             assembly, because GCC would copy sums (a tenth slower). Up to 3 rows have registers for all 32 columns.
 *   NEON      6 rows x 16 columns in 24 of 32 registers.
 *
 *   FMA_*           On all CPUs: sum += activation * weights. A bfloat16 is the upper half of a float32, one shift
 *                   away. For many rows it is shifted once, not for each block: see `widen`.
 *   DOT_BFLOAT16    AVX-512-BF16: sum += a0 * w0 + a1 * w1 for all pairs of a vector in one instruction: twice the
 *                   rate on some CPUs.
 *   DOT_INT8        AVX-512-VNNI, AVX-VNNI: four products of int8, added to sums of 32 bits.
 *   PAIRS_INT8      elsewhere: rows are int16, weights are widened to it in registers, and two products are added to
 *                   sums of 32 bits.
 *   TILES_BFLOAT16  AMX: a tile of 16 rows x 32 inputs times one of 32 inputs x 16 columns in one instruction. There
 *                   are four tiles of sums, two of rows, two of weights: each tile that is loaded is used twice.
 *   TILES_INT8      AMX: 16 rows x 64 inputs times 64 inputs x 16 columns.
 *   TILES_SPLIT     float32 by AMX: with a = a_high + a_low and w = w_high + w_low, three products of bfloat16 tiles,
 *                   a_high w_low + a_high w_high + a_low w_high. The fourth, a_low w_low, is less than 2^-16 of the
 *                   whole. Source: Henry, Tang and Heinecke 2019, "Leveraging the bfloat16 Artificial Intelligence
 *                   Datatype For Higher-Precision Computations".
 */
/* With one row, unaligned loops of tiles were up to a tenth slower. */
#if defined(__AMX_BF16__) && !defined(__clang__)
#pragma GCC optimize("align-loops=64")
#endif
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
#define SUM_ROWS 6
#ifdef __aarch64__
#define COLUMNS(rows) ((rows) > 3 ? 4 : 8)
#else
#define COLUMNS(rows) ((rows) > 3 ? 2 : 4)
#endif
#endif

/* Whether this build, on this CPU, has a kind. A process must ask Linux for the tiles' 8 KB of registers. */
int has_kind(int kind) {
#if defined(__AMX_BF16__) && defined(__linux__)
    const int request = 0x1023 /* ARCH_REQ_XCOMP_PERM */, tile_data = 18;
#ifdef __AMX_INT8__
    if (kind == TILES_INT8) return syscall(SYS_arch_prctl, request, tile_data) == 0;
#endif
    if (kind == TILES_BFLOAT16 || kind == TILES_SPLIT) return syscall(SYS_arch_prctl, request, tile_data) == 0;
#endif
#ifdef HAS_DOT
    if (kind == DOT_BFLOAT16) return 1;
#endif
#ifdef HAS_DOT_INT8
    if (kind == DOT_INT8) return 1;
#endif
    return kind == FMA_FLOAT32 || kind == FMA_BFLOAT16 || kind == PAIRS_INT8;
}

int in_parts(int kind, int rows) { return kind < TILES_BFLOAT16 && COLUMNS(rows) < VECS; }

int64_t product_block(int kind, int64_t count) {
    const int64_t passes = (count + SUM_ROWS - 1) / SUM_ROWS;
    return kind >= TILES_BFLOAT16 ? BLOCK : (count + passes - 1) / passes;
}

/* What the loops by vectors have in common; the macros use those functions' parameters. A panel is read in parts of
 * COLUMNS vectors, from column `from` on. A part's sums begin with zeros, or with those in `out` (`add`), and are
 * stored there. Unrolled, or the compiler would keep the sums in memory. */
#define UNROLL _Pragma("GCC unroll 8")
#define EACH_PART for (int from = 0; from < PANEL; from += COLUMNS(rows) * LANES)
#define BEGIN_SUMS \
    vec sum[SUM_ROWS][VECS]; \
    UNROLL for (int r = 0; r < rows; r++) \
        for (int v = 0; v < COLUMNS(rows); v++) \
            sum[r][v] = add ? load(out + r * out_stride + from + v * LANES) : (vec){0};
#define STORE_SUMS \
    UNROLL for (int r = 0; r < rows; r++) \
        for (int v = 0; v < COLUMNS(rows); v++) store(out + r * out_stride + from + v * LANES, sum[r][v]);
/* Prefetch this part's share of the two cache lines at `at`. */
#define PREFETCH_TWO_LINES(at) \
    for (int line = 4 * from; line < 4 * (from + COLUMNS(rows) * LANES); line += 64) \
        __builtin_prefetch((at) + line, 0, 2);
#define WHOLE (COLUMNS(rows) == VECS) /* a single part has all columns */
/* For several inputs at once: each part prefetches its own run, so no line is prefetched twice. */
#define PREFETCH_RUN(bytes) \
    for (int64_t line = 0; line < (bytes); line += 64) __builtin_prefetch(prefetch + line, 0, 2); \
    prefetch += (bytes);

/* sum += a * b */
#if defined(__FMA__) && LANES == 8
#define MULTIPLY_ADD(sum, a, b) __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b))
#else
#define MULTIPLY_ADD(sum, a, b) (sum) = multiply_add(sum, a, b)
#endif

/* One input: the rows' activations x[r * stride] times the weights of the part's columns, loaded by WEIGHTS(v). */
#define ONE_INPUT(x, WEIGHTS) \
    if (rows == 1) { \
        const vec activation = splat(*(x)); \
        for (int v = 0; v < COLUMNS(rows); v++) sum[0][v] = multiply_add(sum[0][v], activation, WEIGHTS(v)); \
    } else if (COLUMNS(rows) == 2) { \
        const vec left = WEIGHTS(0), right = WEIGHTS(1); \
        UNROLL for (int r = 0; r < rows; r++) { \
            const vec activation = splat((x)[r * stride]); \
            MULTIPLY_ADD(sum[r][0], activation, left); \
            MULTIPLY_ADD(sum[r][1], activation, right); \
        } \
    } else { \
        vec activations[SUM_ROWS]; \
        UNROLL for (int r = 0; r < rows; r++) activations[r] = splat((x)[r * stride]); \
        for (int v = 0; v < COLUMNS(rows); v++) { \
            const vec weights = WEIGHTS(v); \
            UNROLL for (int r = 0; r < rows; r++) MULTIPLY_ADD(sum[r][v], activations[r], weights); \
        } \
    }

/* x: the first of the rows, which are `stride` numbers apart. panel: the weights of k inputs, a multiple of PAD_INPUTS.
 * out_stride: floats from one row of sums to the next. step: bytes to prefetch for every 128 bytes of the panel. */
INLINE void fma_float32(const float *x, int64_t stride, const float *panel, int64_t k, float *out,
                        int64_t out_stride, int add, const char *prefetch, int64_t step, const int rows) {
    EACH_PART {
        BEGIN_SUMS
        const float *w = panel + from;
        const int64_t run = 4 * step * COLUMNS(rows) / VECS;
        for (int64_t i = 0; i < k; i += 4, w += 4 * PANEL) {
            if (step && !WHOLE) { PREFETCH_RUN(run) }
            UNROLL for (int j = 0; j < 4; j++) {
#define FLOATS(v) load(w + j * PANEL + (v) * LANES)
                if (step && WHOLE) { PREFETCH_TWO_LINES(prefetch + (i + j) * step) }
                ONE_INPUT(x + i + j, FLOATS)
            }
        }
        STORE_SUMS
    }
}

INLINE void fma_bfloat16(const float *x, int64_t stride, const uint16_t *panel, int64_t k, float *out,
                         int64_t out_stride, int add, const char *prefetch, int64_t step, const int rows) {
    EACH_PART {
        BEGIN_SUMS
        const uint16_t *w = panel + 2 * from;
        const int inputs = WHOLE ? 2 : 4;
        const int64_t run = inputs / 2 * step * COLUMNS(rows) / VECS;
        for (int64_t i = 0; i < k; i += inputs, w += inputs * PANEL) {
            if (WHOLE) { PREFETCH_TWO_LINES(prefetch + i / 2 * step) }
            else { PREFETCH_RUN(run) }
            UNROLL for (int j = 0; j < inputs; j++) {
#define HALVES(v) half_of(w + j / 2 * 2 * PANEL + 2 * (v) * LANES, j % 2)
                ONE_INPUT(x + i + j, HALVES)
            }
        }
        STORE_SUMS
    }
}

void widen(const void *panel, int64_t k, float *wide) {
    const uint16_t *pairs = panel;
    for (int64_t i = 0; i < k * PANEL; i += 2 * PANEL)
        for (int c = 0; c < PANEL; c += LANES) {
            store(wide + i + c, half_of(pairs + i + 2 * c, 0));
            store(wide + i + PANEL + c, half_of(pairs + i + 2 * c, 1));
        }
}

#ifdef HAS_DOT
INLINE void dot_bfloat16(const uint16_t *x, int64_t stride, const uint16_t *panel, int64_t k, float *out,
                         int64_t out_stride, int add, const char *prefetch, int64_t step, const int rows) {
    EACH_PART {
        BEGIN_SUMS
        for (int64_t i = 0; i < k; i += 2) {
            PREFETCH_TWO_LINES(prefetch + i / 2 * step)
            ivec pairs[SUM_ROWS];
            UNROLL for (int r = 0; r < rows; r++) pairs[r] = splat_pair(x + r * stride + i);
            UNROLL for (int v = 0; v < COLUMNS(rows); v++) {
                const ivec w = *(const ivec *)(panel + i * PANEL + 2 * (from + v * LANES));
                UNROLL for (int r = 0; r < rows; r++) DOT(sum[r][v], pairs[r], w);
            }
        }
        STORE_SUMS
    }
}
#endif

/* Here the `vec` sums hold integers; zero has the same bits. */
#ifdef HAS_DOT_INT8
INLINE void dot_int8(const int8_t *x, int64_t stride, const int8_t *panel, int64_t k, float *out,
                     int64_t out_stride, int add, const char *prefetch, int64_t step, const int rows) {
    EACH_PART {
        BEGIN_SUMS
        for (int64_t i = 0; i < k; i += 4) {
            PREFETCH_TWO_LINES(prefetch + i / 4 * step)
            ivec fours[SUM_ROWS];
            UNROLL for (int r = 0; r < rows; r++) fours[r] = splat_pair(x + r * stride + i);
            UNROLL for (int v = 0; v < COLUMNS(rows); v++) {
                const ivec w = *(const ivec *)(panel + i * PANEL + 4 * (from + v * LANES));
                UNROLL for (int r = 0; r < rows; r++) DOT_INT8S(sum[r][v], fours[r], w);
            }
        }
        STORE_SUMS
    }
}
#endif

INLINE void pairs_int8(const int16_t *x, int64_t stride, const int8_t *panel, int64_t k, float *out,
                       int64_t out_stride, int add, const char *prefetch, int64_t step, const int rows) {
    EACH_PART {
        BEGIN_SUMS
        for (int64_t i = 0; i < k; i += 4) {
            PREFETCH_TWO_LINES(prefetch + i / 4 * step)
            UNROLL for (int j = 0; j < 4; j += 2) {
                const int8_t *w = panel + (i + j) * PANEL + 2 * from;
                if (COLUMNS(rows) == 2) { /* too few registers for the pairs of all rows */
                    const ivec left = widen_pairs(w), right = widen_pairs(w + 2 * LANES);
                    UNROLL for (int r = 0; r < rows; r++) {
                        const ivec pair = splat_pair(x + r * stride + i + j);
                        sum[r][0] = add_pairs(sum[r][0], pair, left);
                        sum[r][1] = add_pairs(sum[r][1], pair, right);
                    }
                } else {
                    ivec pairs[SUM_ROWS];
                    UNROLL for (int r = 0; r < rows; r++) pairs[r] = splat_pair(x + r * stride + i + j);
                    UNROLL for (int v = 0; v < COLUMNS(rows); v++) {
                        const ivec weights = widen_pairs(w + 2 * v * LANES);
                        UNROLL for (int r = 0; r < rows; r++) sum[r][v] = add_pairs(sum[r][v], pairs[r], weights);
                    }
                }
            }
        }
        STORE_SUMS
    }
}

#ifdef __AMX_BF16__
/* Sums are in tiles 0 to 3, rows in 4 and 5, weights in 6 and 7. Each sum has its tile of rows and one of weights.
 * Without `both`, there are 16 rows, and two sums.
 *
 * x: the first row, from its first input on; the rows are `stride` bytes apart. panel: from its first input on. Inputs
 * `begin` to k are multiplied. lines: cache lines to prefetch in each turn of the loop. */
#define EACH_SUM(DO) \
    DO(0, 4, 6) \
    DO(1, 4, 7) \
    if (both) { DO(2, 5, 6) DO(3, 5, 7) }
#define OUT(rows, weights) (out + ((rows) - 4) * 16 * out_stride + ((weights) - 6) * 16)
#define ZERO(sum, rows, weights) _tile_zero(sum);
#define LOAD(sum, rows, weights) _tile_loadd(sum, OUT(rows, weights), 4 * out_stride);
#define STORE(sum, rows, weights) _tile_stored(sum, OUT(rows, weights), 4 * out_stride);
#define MULTIPLY(sum, rows, weights) _tile_dpbf16ps(sum, rows, weights);
#define BEGIN_TILES \
    if (begin == 0) { EACH_SUM(ZERO) } \
    else { EACH_SUM(LOAD) }
#define LOAD_ROWS(from) \
    _tile_loadd(4, (from), stride); \
    if (both) { _tile_loadd(5, (from) + 16 * stride, stride); }
#define LOAD_WEIGHTS(from) \
    _tile_loadd(6, (from), 4 * PANEL); \
    _tile_loadd(7, (from) + 64, 4 * PANEL);
#define PREFETCH_LINES(lines) \
    for (int64_t line = 0; line < (lines); line++) __builtin_prefetch(prefetch + 64 * line, 0, 2); \
    prefetch += 64 * (lines);

INLINE void tiles_bfloat16(const char *x, int64_t stride, const char *panel, int64_t begin, int64_t k,
                           float *out, int64_t out_stride, const char *prefetch, int64_t lines, const int both) {
    BEGIN_TILES
    for (int64_t i = begin; i < k; i += 32) {
        LOAD_ROWS(x + 2 * i)
        PREFETCH_LINES(lines / 2)
        LOAD_WEIGHTS(panel + 2 * PANEL * i)
        PREFETCH_LINES(lines - lines / 2)
        EACH_SUM(MULTIPLY)
    }
    EACH_SUM(STORE)
}

#ifdef __AMX_INT8__
#define MULTIPLY_INT8(sum, rows, weights) _tile_dpbssd(sum, rows, weights);
INLINE void tiles_int8(const char *x, int64_t stride, const char *panel, int64_t begin, int64_t k, float *out,
                       int64_t out_stride, const char *prefetch, int64_t lines, const int both) {
    BEGIN_TILES
    for (int64_t i = begin; i < k; i += 64) {
        LOAD_ROWS(x + i)
        PREFETCH_LINES(lines / 2)
        LOAD_WEIGHTS(panel + PANEL * i)
        PREFETCH_LINES(lines - lines / 2)
        EACH_SUM(MULTIPLY_INT8)
    }
    EACH_SUM(STORE)
}
#endif

INLINE void tiles_split(const char *x, int64_t stride, int64_t plane, const char *panel, int64_t begin,
                        int64_t k, float *out, int64_t out_stride, const char *prefetch, int64_t lines,
                        const int both) {
    BEGIN_TILES
    for (int64_t i = begin; i < k; i += 32) {
        const char *high = panel + 4 * PANEL * i, *low = high + 2 * PANEL * 32;
        LOAD_ROWS(x + 2 * i)
        LOAD_WEIGHTS(low)
        PREFETCH_LINES(lines / 3)
        EACH_SUM(MULTIPLY)
        LOAD_WEIGHTS(high)
        PREFETCH_LINES(lines / 3)
        EACH_SUM(MULTIPLY)
        LOAD_ROWS(x + plane + 2 * i)
        PREFETCH_LINES(lines - lines / 3 * 2)
        EACH_SUM(MULTIPLY)
    }
    EACH_SUM(STORE)
}
#endif

/* Tiles take subnormal numbers, those below 2^-126, as zeros, and make zeros of subnormal results. Two bits of MXCSR
 * make a thread's vectors do the same: without them, decodes would not get the bits of prefills. */
#if defined(__AMX_BF16__) && defined(__x86_64__) /* tests compile tiles for other CPUs, too */
static _Thread_local uint32_t mxcsr; /* outside the products */
#define BEGIN_ZEROS __builtin_ia32_ldmxcsr((mxcsr = __builtin_ia32_stmxcsr()) | 1 << 6 | 1 << 15);
#define END_ZEROS __builtin_ia32_ldmxcsr(mxcsr);
#else
#define BEGIN_ZEROS
#define END_ZEROS
#endif

void begin_products(int kind) {
#ifdef __AMX_BF16__
    if (kind < TILES_BFLOAT16) return;
    BEGIN_ZEROS
    typedef struct { uint8_t palette, start, none[14]; uint16_t width[16]; uint8_t height[16]; } Shape;
    static const Shape shape = {
        .palette = 1, .width = {[0 ... 7] = 64 /* bytes */}, .height = {[0 ... 7] = 16 /* rows */}};
    _tile_loadconfig(&shape);
#endif
}

void end_products(int kind) {
#ifdef __AMX_BF16__
    if (kind < TILES_BFLOAT16) return;
    _tile_release();
    END_ZEROS
#endif
}

void product(int kind, const Rows *rows, int64_t first, int count, const void *panel, int64_t begin, int64_t end,
             float *out, int64_t stride, const void *prefetch, float prefetch_fraction) {
    const char *x = rows->data + first * rows->stride;
    const int64_t k = round_up(end, panel_format(kind) == INT8 ? 2 * PAD_INPUTS : PAD_INPUTS);
    const int64_t step = (int64_t)(128 * prefetch_fraction); /* bytes to prefetch for each 128 of the panel */
#define ONE(function, type, weight, step, n) \
    case n: \
        function((const type *)x + begin, rows->stride / (int64_t)sizeof(type), (const weight *)panel, \
                 k - begin, out, stride, begin > 0, prefetch, step, n); \
        break;
    /* Each number of rows gets its own loop, with its sums in registers. */
#define UP_TO_6(...) \
    ONE(__VA_ARGS__, 1) ONE(__VA_ARGS__, 2) ONE(__VA_ARGS__, 3) \
    ONE(__VA_ARGS__, 4) ONE(__VA_ARGS__, 5) ONE(__VA_ARGS__, 6)
#define UP_TO_8(...) UP_TO_6(__VA_ARGS__) ONE(__VA_ARGS__, 7) ONE(__VA_ARGS__, 8)
#ifdef __AVX512F__
#define EACH(...) switch (count) { UP_TO_8(__VA_ARGS__) }
#else
#define EACH(...) switch (count) { UP_TO_6(__VA_ARGS__) }
#endif
    if (kind == FMA_FLOAT32 && step) EACH(fma_float32, float, float, step)
    if (kind == FMA_FLOAT32 && !step) EACH(fma_float32, float, float, 0) /* prefetches would take the place of loads */
    if (kind == FMA_BFLOAT16) EACH(fma_bfloat16, float, uint16_t, step)
#ifdef HAS_DOT
    if (kind == DOT_BFLOAT16) EACH(dot_bfloat16, uint16_t, uint16_t, step)
#endif
#ifdef HAS_DOT_INT8
    if (kind == DOT_INT8) EACH(dot_int8, int8_t, int8_t, step)
#endif
    if (kind == PAIRS_INT8) EACH(pairs_int8, int16_t, int8_t, step)
#ifdef __AMX_BF16__
    panel = (const char *)panel - panel_bytes(kind, begin); /* for tiles: the panel's first input */
    const int64_t lines = (int64_t)((kind == TILES_SPLIT ? 64 : 32) * prefetch_fraction); /* in each turn */
#define BY_TILES(function, ...) \
    if (count > 16) function(x, __VA_ARGS__, panel, begin, k, out, stride, prefetch, lines, 1); \
    else function(x, __VA_ARGS__, panel, begin, k, out, stride, prefetch, lines, 0);
    if (kind == TILES_BFLOAT16) { BY_TILES(tiles_bfloat16, rows->stride) }
    if (kind == TILES_SPLIT) { BY_TILES(tiles_split, rows->stride, rows->plane) }
#ifdef __AMX_INT8__
    if (kind == TILES_INT8) { BY_TILES(tiles_int8, rows->stride) }
#endif
#endif
}
