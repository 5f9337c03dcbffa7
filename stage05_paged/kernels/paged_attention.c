/* Attention over a paged KV cache, on a CPU. One call computes one layer of one step.
 *
 * The step's tokens are concatenated: request i has the queries from query_start_loc[i] up to
 * query_start_loc[i + 1], and seq_lens[i] keys; its queries belong to the last of them. Its position p is at
 * offset p % block_size of the block block_tables[i][p / block_size].
 *
 *   query, out  [num_tokens, n_head, head_dim]              float32; the query is already divided by
 *                                                           sqrt(head_dim)
 *   k_cache     [num_blocks, n_head, head_dim, block_size]  float32, bfloat16 or float16; keys transposed
 *   v_cache     [num_blocks, n_head, block_size, head_dim]  the same type
 *
 * The work is cut into items: one head of one request, for up to ROWS of its queries. A thread that is free
 * takes the next one. `attend_plainly` is the idea in plain loops, for heads and blocks of any size: read it
 * first. `attend_fast` computes the same at the speed of memory, for GPT-2's heads of 64 numbers.
 */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 8      /* queries of an item */
#define MAX_DIM 256 /* the largest head_dim */
#define PART 64     /* keys of a block that attend_plainly computes together, at most */

enum { FLOAT32, BFLOAT16, FLOAT16 };
static const int64_t SIZE[] = {4, 2, 2};

typedef struct {
    const char *keys, *values; /* the whole caches */
    int64_t n_head, head_dim, block_size;
    int dtype;
} Cache;

/* `rows` queries of one head of a request, the first of them at `position`. */
typedef struct {
    const Cache *cache;
    const int64_t *table; /* the request's blocks */
    int64_t head, position;
    const float *query;
    float *out;
    int rows;
} Item;

/* --- The idea, in plain loops ------------------------------------------------------------------------- */

static inline int64_t at_most(int64_t n, int64_t most) { return n < most ? n : most; }

/* Number i of a cache, as float32. */
static inline float number(const char *cache, int64_t i, int dtype) {
    if (dtype == FLOAT32) return ((const float *)cache)[i];
    const uint32_t half = ((const uint16_t *)cache)[i];
    union { uint32_t bits; float number; } x = {half << 16}; /* a bfloat16 is the upper half of a float32 */
    if (dtype == BFLOAT16) return x.number;
    x.bits = (half & 0x8000) << 16 | (half & 0x7fff) << 13;
    x.number *= 0x1p112f; /* a float16's exponent has another bias */
    if ((half & 0x7c00) == 0x7c00) x.bits |= 0x7f800000; /* infinity and NaN */
    return x.number;
}

/* One query of one head, which sees num_keys keys: block by block, or in parts of a large one. Of the keys so
 * far it keeps only the highest score, the maximum; the sum of the weights, e^(score - maximum); and the sum of
 * weight * value. If a block has a higher score, both sums are scaled down to it. This is the online softmax
 * (Milakov and Gimelshein 2018; Dao et al. 2022, "FlashAttention", sec. 3.1). */
static void attend_plainly(const Cache *c, const int64_t *table, int64_t head, const float *query, float *out,
                           int64_t num_keys) {
    const int64_t dim = c->head_dim, size = c->block_size;
    float maximum = -FLT_MAX, sum = 0, weighted[MAX_DIM] = {0};
    for (int64_t p = 0, count; p < num_keys; p += count) {
        const int64_t offset = p % size, start = (table[p / size] * c->n_head + head) * dim * size;
        count = at_most(at_most(num_keys - p, size - offset), PART);
        float scores[PART] = {0}, highest = maximum;
        for (int64_t d = 0; d < dim; d++)
            for (int64_t j = 0; j < count; j++)
                scores[j] += query[d] * number(c->keys, start + d * size + offset + j, c->dtype);
        for (int64_t j = 0; j < count; j++) highest = scores[j] > highest ? scores[j] : highest;
        const float shrink = expf(maximum - highest);
        maximum = highest, sum *= shrink;
        for (int64_t d = 0; d < dim; d++) weighted[d] *= shrink;
        for (int64_t j = 0; j < count; j++) {
            const float weight = expf(scores[j] - maximum);
            sum += weight;
            for (int64_t d = 0; d < dim; d++)
                weighted[d] += weight * number(c->values, start + (offset + j) * dim + d, c->dtype);
        }
    }
    for (int64_t d = 0; d < dim; d++) out[d] = weighted[d] / sum;
}

/* --- The same, fast -------------------------------------------------------------------------------------
 *
 * Memory is the limit: a decode does two operations with each number that it reads. So keys and values are
 * read once, in place, and the arithmetic is arranged so that it keeps up:
 *
 * - An item walks along the keys in chunks, and a chunk is cut into tiles of LANES keys: as many as a vector
 *   has numbers. All keys of a tile are in one block.
 * - Keys are transposed, so a vector holds the same dimension of many keys, and their scores are summed side by
 *   side: scores[0..15] += query[d] * keys[d][0..15]. With whole keys one after another, every single score
 *   would have to be summed across a vector, which costs more than its products.
 * - What is read is used for all ROWS queries; and while a tile is computed, the next one is prefetched: it may
 *   be anywhere, so the CPU can't predict it.
 *
 * Vectors are a type of GCC's and Clang's: the same source becomes AVX-512, AVX2, SSE or NEON. They are as wide
 * as the CPU's registers, so that the sums stay in these.
 */
#if defined(__AVX512F__)
#define LANES 16    /* floats in a vector, and keys in a tile */
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#define TILES 4     /* tiles in a chunk */
#define CHUNK (TILES * LANES)
#define DIM 64      /* the head_dim of OpenAI's GPT-2s */
#define VECS (DIM / LANES)
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int16_t hvec __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

/* LANES numbers from memory, as float32: see number(). */
INLINE vec read(const char *from, int dtype) {
    if (dtype == FLOAT32) return *(const vec *)from;
    const ivec bits = __builtin_convertvector(*(const hvec *)from, ivec);
    if (dtype == BFLOAT16) return (vec)(bits << 16);
    const vec x = (vec)(bits << 13 & (int32_t)0x8fffe000) * 0x1p112f;
    return (vec)((ivec)x | (((bits & 0x7c00) == 0x7c00) & 0x7f800000));
}

/* The second one if one is NaN. */
INLINE vec larger(vec a, vec b) { return (vec)(((ivec)a & (a > b)) | ((ivec)b & ~(a > b))); }

/* e^x for x <= 0, to 2e-7: 2^n e^r with |r| <= ln(2) / 2, and e^r by its Taylor polynomial. NaN stays NaN. */
INLINE vec exponential(vec x) {
    x = larger((vec){0} - 87.0f, x);                       /* below, n + 127 is no valid exponent */
    vec n = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* adding 1.5 * 2^23 rounds to a whole number */
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f;     /* ln(2) in two parts: an exact product */
    vec p = r * 1.3888889e-3f + 8.3333333e-3f;
    p = ((((p * r + 4.1666667e-2f) * r + 1.6666667e-1f) * r + 0.5f) * r + 1.0f) * r + 1.0f;
    return p * (vec)((__builtin_convertvector(n, ivec) + 127) << 23);
}

/* The state of an item's queries, which the functions below update chunk by chunk. */
typedef struct {
    float query[ROWS][DIM];
    vec weights[ROWS][TILES]; /* of the chunk's keys: first their scores, then e^(score - maximum) */
    float maximum[ROWS];
    vec sum[ROWS], weighted[ROWS][VECS]; /* of the weights, and of weight * value, over all keys so far */
} State;

/* Where a tile's keys and values begin. */
typedef struct { const char *keys, *values; } Tile;

/* max_rows and dtype are constants wherever the functions below are called. So for each pair of values the
 * compiler makes one routine of them all, with loops of fixed length and sums in registers. */

/* An item may have fewer than max_rows queries: the others are zero, and their results are not used. */
INLINE void load_queries(State *s, const Item *item, const int max_rows) {
    const int64_t stride = item->cache->n_head * DIM;
    for (int r = 0; r < max_rows; r++) {
        for (int d = 0; d < DIM; d++) s->query[r][d] = r < item->rows ? item->query[r * stride + d] : 0;
        for (int v = 0; v < VECS; v++) s->weighted[r][v] = (vec){0};
        s->maximum[r] = -FLT_MAX, s->sum[r] = (vec){0};
    }
}

/* The tile that begins at position `first`. */
INLINE Tile locate(const Item *item, int64_t first, const int dtype) {
    const Cache *c = item->cache;
    const int64_t offset = first % c->block_size;
    const int64_t start = (item->table[first / c->block_size] * c->n_head + item->head) * DIM * c->block_size;
    return (Tile){c->keys + (start + offset) * SIZE[dtype], c->values + (start + offset * DIM) * SIZE[dtype]};
}

/* The tiles of the chunk that begins at position `first`, and after them the one that is needed next: the
 * next chunk's first one. If this chunk is the last, any address will do. */
INLINE void locate_tiles(Tile *tile, int tiles, const Item *item, int64_t first, const int dtype) {
    for (int t = 0; t < tiles; t++) tile[t] = locate(item, first + t * LANES, dtype);
    const int more = first + CHUNK < item->position + item->rows;
    tile[tiles] = more ? locate(item, first + CHUNK, dtype) : tile[0];
}

/* The scores of tile t. stride: bytes from one dimension of the keys to the next. */
INLINE void score_tile(State *s, int t, const Tile *tile, int64_t stride, const int max_rows,
                       const int dtype) {
    enum { PARTS = 4 };
    const int parts = max_rows == 1 ? PARTS : 1; /* a single row would wait for each sum: give it four */
    vec scores[ROWS][PARTS];
    for (int r = 0; r < max_rows; r++)
        for (int p = 0; p < parts; p++) scores[r][p] = (vec){0};
    for (int d = 0; d < DIM; d += parts)
        for (int p = 0; p < parts; p++) {
            const vec keys = read(tile[0].keys + (d + p) * stride, dtype);
            __builtin_prefetch(tile[1].keys + (d + p) * stride);
            for (int r = 0; r < max_rows; r++) scores[r][p] += s->query[r][d + p] * keys;
        }
    for (int r = 0; r < max_rows; r++) {
        for (int p = 1; p < parts; p++) scores[r][0] += scores[r][p];
        s->weights[r][t] = scores[r][0];
    }
}

/* Query r, which sees the first `visible` keys of the chunk: turn their scores into weights, and scale the sums
 * so far down to the new maximum. */
INLINE void softmax_step(State *s, int r, int tiles, int visible) {
    for (int j = visible; j < tiles * LANES; j++) s->weights[r][j / LANES][j % LANES] = -INFINITY;
    vec best = s->weights[r][0];
    for (int t = 1; t < tiles; t++) best = larger(s->weights[r][t], best);
    float highest = s->maximum[r];
    for (int j = 0; j < LANES; j++) highest = best[j] > highest ? best[j] : highest;
    const vec shrink = exponential((vec){0} + (s->maximum[r] - highest));
    vec sum = s->sum[r] * shrink;
    for (int t = 0; t < tiles; t++) {
        const vec scores = s->weights[r][t], e = exponential(scores - highest);
        const vec weights = (vec)((ivec)e & (scores != -INFINITY)); /* 0 for a hidden key */
        s->weights[r][t] = weights, sum += weights;
    }
    s->sum[r] = sum, s->maximum[r] = highest;
    for (int v = 0; v < VECS; v++) s->weighted[r][v] *= shrink;
}

/* Add the first `count` values of tile t, each times its weight. */
INLINE void add_values(State *s, int t, const Tile *tile, int count, const int max_rows, const int dtype) {
    for (int j = 0; j < count; j++) {
        float weights[ROWS]; /* copied; otherwise they would be read again for each vector of a value */
        for (int r = 0; r < max_rows; r++) weights[r] = s->weights[r][t][j];
        for (int v = 0; v < VECS; v++) {
            const int64_t at = (j * DIM + v * LANES) * SIZE[dtype];
            const vec values = read(tile[0].values + at, dtype);
            __builtin_prefetch(tile[1].values + at);
            for (int r = 0; r < max_rows; r++) s->weighted[r][v] += weights[r] * values;
        }
    }
}

INLINE void write_out(const State *s, const Item *item) {
    const int64_t stride = item->cache->n_head * DIM;
    for (int r = 0; r < item->rows; r++) {
        float total = 0;
        for (int j = 0; j < LANES; j++) total += s->sum[r][j];
        for (int v = 0; v < VECS; v++) *(vec *)&item->out[r * stride + v * LANES] = s->weighted[r][v] / total;
    }
}

INLINE void attend_fast(const Item *item, const int max_rows, const int dtype) {
    const int64_t num_keys = item->position + item->rows, stride = item->cache->block_size * SIZE[dtype];
    State s;
    load_queries(&s, item, max_rows);
    for (int64_t first = 0; first < num_keys; first += CHUNK) {
        const int count = (int)at_most(num_keys - first, CHUNK), tiles = (count + LANES - 1) / LANES;
        Tile tile[TILES + 1];
        locate_tiles(tile, tiles, item, first, dtype);
        for (int t = 0; t < tiles; t++) score_tile(&s, t, &tile[t], stride, max_rows, dtype);
        for (int r = 0; r < max_rows; r++) {
            const int64_t visible = item->position + r + 1 - first; /* a query sees the keys up to its own */
            softmax_step(&s, r, tiles, visible < 0 ? 0 : (int)at_most(visible, count));
        }
        for (int t = 0; t < tiles; t++)
            add_values(&s, t, &tile[t], (int)at_most(count - t * LANES, LANES), max_rows, dtype);
    }
    write_out(&s, item);
}

/* --- From items to threads ---------------------------------------------------------------------------- */

/* A decode has one query, a prompt ROWS at a time; the last item of a prompt may have fewer. */
static void attend(const Item *item) {
    const Cache *c = item->cache;
    if (c->head_dim != DIM || c->block_size % LANES != 0) {
        const int64_t stride = c->n_head * c->head_dim;
        for (int64_t r = 0; r < item->rows; r++)
            attend_plainly(c, item->table, item->head, item->query + r * stride, item->out + r * stride,
                           item->position + r + 1);
        return;
    }
    switch (item->rows == 1 ? c->dtype : c->dtype + 10) {
        case FLOAT32: attend_fast(item, 1, FLOAT32); break;
        case BFLOAT16: attend_fast(item, 1, BFLOAT16); break;
        case FLOAT16: attend_fast(item, 1, FLOAT16); break;
        case 10 + FLOAT32: attend_fast(item, ROWS, FLOAT32); break;
        case 10 + BFLOAT16: attend_fast(item, ROWS, BFLOAT16); break;
        case 10 + FLOAT16: attend_fast(item, ROWS, FLOAT16); break;
    }
}

/* Returns 0; or -1, with nothing written, if memory ran out. */
int paged_attention(float *out, const float *query, const void *k_cache, const void *v_cache,
                    const int64_t *block_tables, const int64_t *query_start_loc, const int64_t *seq_lens,
                    int64_t num_seqs, int64_t table_width, int64_t n_head, int64_t head_dim,
                    int64_t block_size, int dtype, int num_threads) {
    const Cache cache = {k_cache, v_cache, n_head, head_dim, block_size, dtype};
    int64_t(*parts)[2] = malloc(sizeof(int64_t[2]) * (size_t)query_start_loc[num_seqs]);
    int64_t num_parts = 0; /* (request, first query), an item for each head */
    if (!parts) return -1;
    for (int64_t i = 0; i < num_seqs; i++)
        for (int64_t q = query_start_loc[i]; q < query_start_loc[i + 1]; q += ROWS)
            parts[num_parts][0] = i, parts[num_parts++][1] = q;

#pragma omp parallel for schedule(dynamic) num_threads(num_threads)
    for (int64_t n = 0; n < num_parts * n_head; n++) {
        const int64_t i = parts[n / n_head][0], first = parts[n / n_head][1], head = n % n_head;
        const int64_t left = query_start_loc[i + 1] - first, at = (first * n_head + head) * head_dim;
        const Item item = {.cache = &cache,
                           .table = block_tables + i * table_width,
                           .head = head,
                           .position = seq_lens[i] - left,
                           .query = query + at,
                           .out = out + at,
                           .rows = (int)at_most(left, ROWS)};
        attend(&item);
    }
    free(parts);
    return 0;
}
