/* Attention over a paged KV cache, on a CPU. One call does one layer of one step.
 *
 * The step's tokens stand one behind the other: request i owns the queries query_start_loc[i] to query_start_loc[i + 1],
 * and has seq_lens[i] keys; its queries belong to the last of them. Position p of it is row p % block_size of the block
 * block_tables[i][p / block_size].
 *
 *   query, out  [num_tokens, n_head, head_dim]              float32; the query is already divided by sqrt(head_dim)
 *   k_cache     [num_blocks, n_head, head_dim, block_size]  float32, bfloat16 or float16: the keys of a block, transposed
 *   v_cache     [num_blocks, n_head, block_size, head_dim]  the same type
 *
 * The idea. Memory is the limit: a decode does two operations with each number that it reads. So keys and values are read
 * once, from where they lie, and the arithmetic is arranged so that it keeps up:
 *
 * - The work is cut into items: one head of one request, for up to ROWS of its queries. Threads take them as they come.
 * - An item walks along the keys, CHUNK of them at a time, and of the past it keeps a maximum, a sum and a weighted sum of
 *   values for each query: the online softmax (Milakov and Gimelshein 2018; Dao et al. 2022, "FlashAttention", sec. 3.1).
 * - Transposed keys lie side by side, so a vector takes one number of each of many keys, and their scores grow together:
 *   scores[0..15] += query[d] * keys[d][0..15]. With whole keys behind each other every single score would have to be
 *   summed up across a vector, which costs more than its products.
 * - What is read is used for all ROWS queries; and while a tile of LANES keys is computed, the next one is asked for from
 *   memory: it may lie anywhere, so the CPU could not guess it.
 *
 * All GPT-2s have head_dim 64; they, with blocks of 16, 32, ... tokens, are computed in place. Other sizes are copied tile
 * by tile first, which is slower. Vectors are the compiler's (GCC's and Clang's) own type: the same text becomes AVX-512,
 * AVX2, SSE or NEON. They are as wide as the CPU's registers, or the sums would not fit into these.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16    /* floats in a vector, and keys in a tile */
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#define TILES 4     /* tiles in a chunk */
#define CHUNK (TILES * LANES)
#define ROWS 8      /* queries of an item */
#define MAX_DIM 256 /* the largest head_dim */
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t hvec __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

enum { FLOAT32, BFLOAT16, FLOAT16 };
static const int64_t SIZE[] = {4, 2, 2};

/* LANES numbers from memory, as float32. */
INLINE vec read(const char *from, int dtype) {
    if (dtype == FLOAT32) return *(const vec *)from;
    const ivec bits = __builtin_convertvector(*(const hvec *)from, ivec);
    if (dtype == BFLOAT16) return (vec)(bits << 16);                        /* the upper half of a float32 */
    const vec magnitude = (vec)((bits & 0x7fff) << 13) * 0x1p112f;          /* another bias; infinity becomes 65536 */
    return (vec)((ivec)magnitude | (bits & 0x8000) << 16);
}

INLINE vec larger(vec a, vec b) { return (vec)(((ivec)a & (a > b)) | ((ivec)b & (a <= b))); }

/* e^x for x <= 0, to 2e-7: 2^n e^r with |r| <= ln(2) / 2, and e^r by its Taylor polynomial. */
INLINE vec exponential(vec x) {
    x = larger(x, (vec){0} - 87.0f);                       /* below, 2^n would not be a number any more */
    vec n = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* adding 1.5 * 2^23 rounds to a whole number */
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f;     /* ln(2) in two parts, so that the product is exact */
    vec p = r * 1.3888889e-3f + 8.3333333e-3f;
    p = ((((p * r + 4.1666667e-2f) * r + 1.6666667e-1f) * r + 0.5f) * r + 1.0f) * r + 1.0f;
    return p * (vec)((__builtin_convertvector(n, ivec) + 127) << 23);
}

typedef struct {
    const char *keys, *values; /* the whole caches */
    int64_t n_head, head_dim, block_size;
    int dtype;
} Cache;

/* A tile: its keys, the distance in bytes from one dimension of them to the next, its values. */
typedef struct { const char *keys, *values; int64_t stride; } Tile;

/* Keys first to first + LANES - 1 of a request, in place. */
INLINE Tile locate(const Cache *c, const int64_t *table, int64_t head, int64_t first, int dtype, int dim) {
    const int64_t start = (table[first / c->block_size] * c->n_head + head) * dim * c->block_size;
    const int64_t row = first % c->block_size;
    return (Tile){c->keys + (start + row) * SIZE[dtype], c->values + (start + row * dim) * SIZE[dtype],
                  c->block_size * SIZE[dtype]};
}

INLINE float number(const char *cache, int64_t i, int dtype) {
    if (dtype == FLOAT32) return ((const float *)cache)[i];
    const hvec same = ((const uint16_t *)cache)[i] - (hvec){0};
    return read((const char *)&same, dtype)[0];
}

/* The same for any size: number by number into `buffer`, as float32. dim is head_dim rounded up to whole vectors. */
static Tile gather(const Cache *c, const int64_t *table, int64_t head, int64_t first, int64_t count, int dim, float *buffer) {
    float *keys = buffer, *values = buffer + LANES * dim;
    memset(buffer, 0, sizeof(float) * 2 * LANES * (size_t)dim);
    for (int64_t j = 0; j < count && j < LANES; j++) {
        const int64_t block = table[(first + j) / c->block_size], row = (first + j) % c->block_size;
        const int64_t start = (block * c->n_head + head) * c->head_dim * c->block_size;
        for (int64_t d = 0; d < c->head_dim; d++) {
            keys[d * LANES + j] = number(c->keys, start + d * c->block_size + row, c->dtype);
            values[j * dim + d] = number(c->values, start + row * c->head_dim + d, c->dtype);
        }
    }
    return (Tile){(const char *)keys, (const char *)values, 4 * LANES};
}

/* One item: `rows` queries of one head, the first of them at `position`. Those after `rows`, in_place, dtype and (in
 * place) dim are constants wherever this is called: each call becomes a routine of its own, with its sums in registers. */
INLINE void attend(const Cache *c, const int64_t *table, int64_t head, const float *query, float *out, int64_t position,
                   int rows, const int max_rows, const int in_place, const int dtype, const int dim) {
    enum { PARTS = 4 };
    const int parts = max_rows == 1 ? PARTS : 1; /* one row alone would wait for each sum: let it have four */
    const int64_t stride = c->n_head * c->head_dim, num_keys = position + rows;
    float q[ROWS][MAX_DIM], maximum[ROWS], weights[ROWS][CHUNK], buffer[TILES][in_place ? 1 : 2 * LANES * dim];
    vec sum[ROWS], weighted[ROWS][MAX_DIM / LANES]; /* of e^score, and of e^score * value */
    for (int r = 0; r < max_rows; r++) {
        for (int d = 0; d < dim; d++) q[r][d] = r < rows && d < c->head_dim ? query[r * stride + d] : 0;
        for (int d = 0; d < dim / LANES; d++) weighted[r][d] = (vec){0};
        maximum[r] = -INFINITY, sum[r] = (vec){0};
    }
    for (int64_t first = 0; first < num_keys; first += CHUNK) {
        const int count = num_keys - first < CHUNK ? (int)(num_keys - first) : CHUNK;
        const int tiles = (count + LANES - 1) / LANES;
        Tile tile[TILES + 1];
        for (int t = 0; t < tiles; t++)
            tile[t] = in_place ? locate(c, table, head, first + t * LANES, dtype, dim)
                               : gather(c, table, head, first + t * LANES, count - t * LANES, dim, buffer[t]);
        tile[tiles] = tile[0]; /* what is asked for ahead: the next chunk's first tile, if there is one */
        if (in_place && first + CHUNK < num_keys) tile[tiles] = locate(c, table, head, first + CHUNK, dtype, dim);

        for (int t = 0; t < tiles; t++) {
            vec scores[ROWS][PARTS];
            for (int r = 0; r < max_rows; r++)
                for (int p = 0; p < parts; p++) scores[r][p] = (vec){0};
            for (int d = 0; d < dim; d += parts)
                for (int p = 0; p < parts; p++) {
                    const vec keys = read(tile[t].keys + (d + p) * tile[t].stride, dtype);
                    __builtin_prefetch(tile[t + 1].keys + (d + p) * tile[t + 1].stride);
                    for (int r = 0; r < max_rows; r++) scores[r][p] += q[r][d + p] * keys;
                }
            for (int r = 0; r < max_rows; r++) {
                for (int p = 1; p < parts; p++) scores[r][0] += scores[r][p];
                *(vec *)&weights[r][t * LANES] = scores[r][0];
            }
        }
        for (int r = 0; r < max_rows; r++) {
            const int64_t seen = position + r + 1 - first; /* a query sees the keys up to its own */
            for (int j = seen < 0 ? 0 : seen < count ? (int)seen : count; j < tiles * LANES; j++) weights[r][j] = -INFINITY;
            vec best = *(vec *)weights[r];
            for (int t = 1; t < tiles; t++) best = larger(*(vec *)&weights[r][t * LANES], best);
            float highest = maximum[r];
            for (int j = 0; j < LANES; j++) highest = best[j] > highest ? best[j] : highest;
            const vec shrink = exponential((vec){0} + (maximum[r] - highest)); /* brings the past to the new scale */
            sum[r] *= shrink, maximum[r] = highest;
            for (int d = 0; d < dim / LANES; d++) weighted[r][d] *= shrink;
            for (int t = 0; t < tiles; t++) {
                vec *w = (vec *)&weights[r][t * LANES], e = exponential(*w - highest);
                *w = (vec)((ivec)e & (*w > -INFINITY)); /* nothing at all for a key that is not seen */
                sum[r] += *w;
            }
        }
        for (int t = 0; t < tiles; t++)
            for (int j = 0; j < LANES && t * LANES + j < count; j++)
                for (int d = 0; d < dim / LANES; d++) {
                    const int64_t at = (j * dim + d * LANES) * SIZE[dtype];
                    const vec values = read(tile[t].values + at, dtype);
                    __builtin_prefetch(tile[t + 1].values + at);
                    for (int r = 0; r < max_rows; r++) weighted[r][d] += weights[r][t * LANES + j] * values;
                }
    }
    for (int r = 0; r < rows; r++) {
        float total = 0;
        for (int j = 0; j < LANES; j++) total += sum[r][j];
        for (int d = 0; d < c->head_dim; d++) out[r * stride + d] = weighted[r][d / LANES][d % LANES] / total;
    }
}

/* 0; or -1 if there is no memory for it, before anything was written. */
int paged_attention(float *out, const float *query, const void *k_cache, const void *v_cache, const int64_t *block_tables,
                    const int64_t *query_start_loc, const int64_t *seq_lens, int64_t num_seqs, int64_t table_width,
                    int64_t n_head, int64_t head_dim, int64_t block_size, int dtype, int num_threads) {
    const Cache cache = {k_cache, v_cache, n_head, head_dim, block_size, dtype};
    const int dim = (int)(head_dim + LANES - 1) / LANES * LANES;
    const int kind = head_dim == 64 && block_size % LANES == 0 ? dtype : -1;
    int64_t(*tiles)[2] = malloc(sizeof(int64_t[2]) * (size_t)query_start_loc[num_seqs]); /* (request, first query) */
    int64_t num_tiles = 0;
    if (!tiles) return -1;
    for (int64_t i = 0; i < num_seqs; i++)
        for (int64_t q = query_start_loc[i]; q < query_start_loc[i + 1]; q += ROWS)
            tiles[num_tiles][0] = i, tiles[num_tiles++][1] = q;

#pragma omp parallel for schedule(dynamic) num_threads(num_threads)
    for (int64_t item = 0; item < num_tiles * n_head; item++) {
        const int64_t i = tiles[item / n_head][0], first = tiles[item / n_head][1], head = item % n_head;
        const int64_t end = query_start_loc[i + 1], position = seq_lens[i] - (end - first);
        const int64_t *table = block_tables + i * table_width, at = (first * n_head + head) * head_dim;
        const int rows = end - first < ROWS ? (int)(end - first) : ROWS;
#define ATTEND(...) attend(&cache, table, head, query + at, out + at, position, rows, __VA_ARGS__)
        switch (rows == 1 ? kind : kind + 10) {
            case FLOAT32: ATTEND(1, 1, FLOAT32, 64); break;
            case BFLOAT16: ATTEND(1, 1, BFLOAT16, 64); break;
            case FLOAT16: ATTEND(1, 1, FLOAT16, 64); break;
            case 10 + FLOAT32: ATTEND(ROWS, 1, FLOAT32, 64); break;
            case 10 + BFLOAT16: ATTEND(ROWS, 1, BFLOAT16, 64); break;
            case 10 + FLOAT16: ATTEND(ROWS, 1, FLOAT16, 64); break;
            default: ATTEND(ROWS, 0, FLOAT32, dim);
        }
    }
    free(tiles);
    return 0;
}
