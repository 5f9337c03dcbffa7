/* A linear layer, with its bias, GELU or residual.
 *
 * - The weights are packed (see product.c), so a panel of 32 columns is one run of memory. The CPU's prefetcher follows
 *   a run, but only within a page. So the kernel prefetches too: 8 KB ahead with few rows; and where rows need several
 *   passes over a piece of a panel, part of the next piece in each pass, so that memory is busy during the arithmetic.
 * - Many rows are multiplied in chunks of up to 512, by all panels. A piece of a panel, 384 inputs long, stays in the
 *   cache while it serves the whole chunk. A whole panel (GPT-2's have up to 3,072 inputs) would not fit along with the
 *   next one and the rows. Tiles are so fast that the rows must be near, too: a chunk fills only half of the level 2
 *   cache, and pieces of 128 inputs fit into the level 1 cache.
 * - Without AVX-512, a bfloat16 panel that is read by more than two passes is widened to float32 once. Widening it in
 *   each pass would cost a quarter of the rate.
 * - Fusion: bias, GELU or residual are applied to a panel's results while these are still in the level 1 cache. The
 *   memory for the results is prefetched before the product, or the CPU would wait for it after the product.
 *
 * A thread's work is a run of panels; with many rows, of chunks times panels, so threads need not meet between chunks.
 * During its last panel a thread prefetches its first one of the `next` layer, so memory is not idle in between.
 */
#include <math.h>
#include <unistd.h>
#include "kernels.h"

#define DISTANCE 8192    /* bytes from what a single pass reads to what it prefetches */
#define MAX_ROWS 512     /* of a chunk */
#define TILE_DEPTH 128   /* inputs of a panel's piece, with tiles */
#define VECTOR_DEPTH 384 /* the same, with vectors */
/* Measured: on a Zen 3 the CPU's prefetcher keeps up with one pass over whole float32 panels, where prefetching costs a
 * seventh of the bandwidth. On a Xeon with AVX-512, it falls behind from two rows on. */
#define STREAMS_ITSELF (LANES < 16)
#define MAX_PASSES 32  /* with more, reading a panel takes hardly any time, but prefetching would */

/* x / (1 + e^-2u) = 0.5 x (1 + tanh u), u = sqrt(2 / pi) (x + 0.044715 x^3): GPT-2's form of GELU. */
INLINE vec gelu(vec x) {
    const vec u2 = 1.5957691216f * (x + 0.044715f * x * x * x);
    const vec e = exponential((vec)((ivec)u2 | (int32_t)0x80000000)); /* e^-|2u| can't overflow */
    return x * (vec)(((ivec)splat(1) & (u2 > 0)) | ((ivec)e & (u2 <= 0))) * reciprocal(1 + e);
}

/* Apply the epilogue to a panel's sums for a block of rows, and store the results. y: [count][PANEL]. Rows (TO_ROWS,
 * GELU) get the padding columns too: these are 0, as the next product needs them. */
INLINE void finish(const Linear *w, int64_t row, int count, int64_t column, float (*y)[PANEL], int epilogue,
                   float *out, const Rows *to) {
    const int width = w->out - column < PANEL ? (int)(w->out - column) : PANEL;
    for (int r = 0; r < count; r++)
        for (int c = 0; c < PANEL; c += LANES) {
            vec value = load(y[r] + c);
            if (w->bias) value += load(w->bias + column + c);
            float *at = out + (row + r) * w->out + column + c;
            if (epilogue == GELU) value = gelu(value);
            if (epilogue >= TO_ROWS) write_row(to, row + r, column + c, value);
            else if (c + LANES <= width) {
                if (epilogue == ADD) value += load(at);
                store(at, value);
            }
            else
                for (int i = 0; i < width - c; i++) at[i] = epilogue == ADD ? at[i] + value[i] : value[i];
        }
}

/* Prefetch the memory that `finish` will write to. */
INLINE void prefetch_results(const Linear *w, int64_t row, int count, int64_t column, int epilogue, float *out,
                             const Rows *to) {
    const Rows floats = {(char *)out, 4 * w->out, 0, FLOAT32};
    for (int r = 0; r < count; r++) prefetch_row(epilogue >= TO_ROWS ? to : &floats, row + r, column, PANEL, 1);
}

static int64_t num_panels(const Linear *w) { return (w->out + PANEL - 1) / PANEL; }

/* The most rows of a chunk: with tiles, as many as fill half of the level 2 cache. */
static int64_t max_chunk_rows(int kind, const Rows *x) {
    if (kind < TILES_BFLOAT16) return MAX_ROWS;
    long size = 0;
#ifdef _SC_LEVEL2_CACHE_SIZE
    size = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    const int64_t row = x->stride * (x->format == SPLIT ? 2 : 1);
    const int64_t rows = (size > 0 ? size : 1 << 19) / 2 / row;
    return rows < BLOCK ? BLOCK : rows > MAX_ROWS ? MAX_ROWS : rows / BLOCK * BLOCK;
}

/* The length of a panel's pieces, in inputs: a piece is multiplied with all rows before the next one is. */
static int64_t depth_of(int kind, int64_t passes, int64_t in) {
    if (kind >= TILES_BFLOAT16) return TILE_DEPTH;
    /* With AVX-512 a bfloat16 panel, half as long, is up to a tenth faster whole. So is any that many passes read. */
    if (LANES == 16 && (kind != FMA_FLOAT32 || passes > MAX_PASSES)) return in;
    return VECTOR_DEPTH;
}

/* Rows that go through the panels together: `count` of them, in `passes` passes over each piece of a panel. */
typedef struct {
    int64_t count, passes, block, depth; /* block: rows of a pass; depth: inputs of a piece */
    int streams; /* whether a panel is read once, from front to back */
    float prefetch_fraction; /* of what is needed next, in each pass */
} Chunk;

/* Chunk i, where each has `rows` rows and the last one the rest. */
static Chunk chunk_of(const Linear *w, int64_t num_rows, int64_t rows, int64_t i) {
    const int kind = (int)w->kind;
    const int64_t count = num_rows - i * rows < rows ? num_rows - i * rows : rows;
    const int64_t block = product_block(kind, count), passes = (count + block - 1) / block;
    const int streams = passes == 1 && !in_parts(kind, (int)block);
    const int64_t depth = streams ? w->in : depth_of(kind, passes, w->in);
    const int no_prefetch = passes > MAX_PASSES || (streams && STREAMS_ITSELF && kind == FMA_FLOAT32);
    return (Chunk){count, passes, block, depth, streams, no_prefetch ? 0 : 1.0f / (float)passes};
}

/* One panel, for the chunk of rows from `begin` on. after: memory needed after this panel, or NULL. */
static void one_panel(const Linear *w, const Rows *x, int64_t begin, const Chunk *c, int64_t p, int epilogue,
                      float *out, const Rows *to, const char *after) {
    float y[MAX_ROWS][PANEL] __attribute__((aligned(64)));
    const int kind = (int)w->kind;
    const int64_t bytes = panel_bytes(kind, w->in);
    const char *panel = w->panels + p * bytes;
    float wide[VECTOR_DEPTH * PANEL] __attribute__((aligned(64)));
    const int widened = LANES < 16 && kind == FMA_BFLOAT16 && c->passes > 2;
    for (int64_t k = 0; k < w->in; k += c->depth) {
        const int64_t k_end = k + c->depth < w->in ? k + c->depth : w->in;
        const char *piece = panel + panel_bytes(kind, k);
        const char *prefetch = k_end < w->in ? panel + panel_bytes(kind, k_end) : after;
        const float fraction = prefetch ? c->prefetch_fraction : 0;
        if (widened) widen(piece, round_up(k_end, PAD_INPUTS) - k, wide);
        for (int64_t r = 0; r < c->count; r += c->block) {
            const int rows = (int)(c->count - r < c->block ? c->count - r : c->block);
            if (k_end == w->in) prefetch_results(w, begin + r, rows, p * PANEL, epilogue, out, to);
            /* Half the fraction, because a widened piece has twice the bytes. */
            if (widened) product(FMA_FLOAT32, x, begin + r, rows, wide, k, k_end, y[r], PANEL, prefetch, fraction / 2);
            else product(kind, x, begin + r, rows, piece, k, k_end, y[r], PANEL, prefetch, fraction);
            if (fraction > 0) prefetch += (int64_t)((float)(bytes * (k_end - k) / w->in) * fraction);
            if (k_end == w->in) finish(w, begin + r, rows, p * PANEL, y + r, epilogue, out, to);
        }
    }
}

/* The first panel of this thread's run. */
static const char *first_panel(const Team *team, const Linear *w, int kind) {
    return w->panels + run_of(team, team->rank, num_panels(w)) * panel_bytes(kind, w->in);
}

void linear(const Team *team, const Linear *w, const Rows *x, int64_t num_rows, int epilogue, float *out,
            const Rows *to, const Linear *next) {
    const int kind = (int)w->kind;
    const int64_t panels = num_panels(w), bytes = panel_bytes(kind, w->in), rows = max_chunk_rows(kind, x);
    const int64_t num_jobs = (num_rows + rows - 1) / rows * panels; /* a job: one chunk times one panel */
    begin_products(kind);
    PARALLEL_FOR(job, num_jobs, team) {
        const int64_t i = job / panels, p = job % panels;
        const Chunk chunk = chunk_of(w, num_rows, rows, i);
        const char *after = w->panels + (chunk.streams ? p * bytes + DISTANCE : (p + 1) % panels * bytes);
        if (job + 1 == run_of(team, team->rank + 1, num_jobs)) /* this thread's last one */
            after = next ? first_panel(team, next, kind) : NULL;
        one_panel(w, x, i * rows, &chunk, p, epilogue, out, to, after);
    }
    end_products(kind);
    barrier(team);
}
