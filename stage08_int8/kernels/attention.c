/* Attention over a paged KV cache, on a CPU. One call does one layer of one step.
 *
 * The tokens of a step are concatenated: request i owns the queries query_start_loc[i] to query_start_loc[i + 1], and
 * has seq_lens[i] keys, the last of which are those queries' own. Position p of a request is at offset
 * p % block_size of block block_tables[i][p / block_size].
 *
 *   query    [num_tokens, n_head * head_dim]             float32, or the type of the cache
 *   keys     [num_blocks, n_head, head_dim, block_size]  float32, bfloat16 or float16; keys transposed
 *   values   [num_blocks, n_head, block_size, head_dim]  the same type
 *   out      [num_tokens, n_head * head_dim]             rows for the next product
 *
 * A query's result has the same bits however many queries are computed with it, because all sums have one order: a
 * score's products by dimension; the weights by `softmax`, which knows the maximum before the first exponential; the
 * weighted values by position. This is the order of product.c. An online softmax rescales its sums whenever it meets a
 * larger score; decodes and prefills would then have to cut the keys at the same places.
 *
 * A request with many queries (a prefill) is two matrix products: prefill_attention.c. One with few queries (a decode)
 * is here. Its limit is memory, as it does two operations with each number that it reads. So keys and values are read
 * once, from where they lie, and the arithmetic has to keep up:
 *
 * - The work is divided into items: some heads of one request, for up to QUERIES of its queries. Threads take them one
 *   by one.
 * - Keys are transposed, so a vector holds one dimension of many keys, and their scores grow together:
 *   scores[0..15] += query[d] * keys[d][0..15]. With whole keys, each score would be a sum across a vector, which costs
 *   more than its products.
 * - Each addition to a sum waits for the one before, so several sums are computed side by side: those of QUERIES
 *   queries or, for a single query, those of SIDE pieces. A piece is one head's keys, or values, in a tile of 16
 *   positions.
 * - For a single query, all heads walk along the keys together. They are neighbors in a block, so memory is read in
 *   runs of 48 KB (GPT-2 small, float32). Head by head it would be 4 KB, and the prefetcher would start over each time.
 * - The prefetcher can't know where the next block is. So the kernel prefetches the piece AHEAD pieces later into the
 *   level 2 cache; in level 1 four pieces of float32, 16 KB, would take half of the room on many CPUs.
 *
 * This is for an even head_dim from 16 to 128 and blocks of 16, 32, ... tokens. All other sizes go through products.
 */
#include <math.h>
#include <stdlib.h>
#include "kernels.h"

#define TILE 16 /* keys */
#define VECS (TILE / LANES)
#define MAX_DIM 128  /* the largest head_dim; GPT-2's is 64 */
#define WIDTH 32     /* dimensions of a value that are added together; or twice as many */
#define QUERIES 8    /* of a head, computed together */
#define HEADS 16     /* of a single query, computed together */
#define SIDE 4       /* pieces of a single query whose scores are computed side by side */
#define AHEAD 4      /* pieces from the one that is read to the one that is prefetched */
#define LOCATED 64   /* pieces looked up at a time */
#define LINE 64      /* bytes of a cache line */
#define PROMPT 8     /* queries of a request from which packing its keys for products pays */

/* Heads of one query, or queries of one head, that walk along the keys together. A pair is a query and a head: number
 * h * max_rows + r is head h of query r, counted from the walk's first ones. */
#define PAIRS (HEADS > QUERIES ? HEADS : QUERIES)
typedef struct {
    const Cache *cache;
    const int64_t *table; /* the request's blocks */
    const Rows *query, *out;
    int64_t row, position; /* the first query's row in these, and its position in the request */
    int64_t head;          /* the first head */
    int heads, rows, dim; /* dim: head_dim */
    Rows scores, weights; /* [PAIRS, keys], in the same memory */
} Walk;

typedef struct {
    float query[PAIRS][MAX_DIM]; /* / sqrt(dim); for DOT_BFLOAT16, a row holds bfloat16s */
    float sum[PAIRS];            /* of the weights */
    vec weighted[PAIRS][MAX_DIM / LANES]; /* sum of the values times their weights */
    vec even[PAIRS][MAX_DIM / LANES], odd[PAIRS][MAX_DIM / LANES]; /* an AMX tile's part of it: see TILE_INPUTS */
} State;

/* max_rows (1 or QUERIES), format and kind are constants in each call of the functions below. So the inline ones become
 * one routine for each combination, with loops of fixed length and sums in registers. The others, a small part of the
 * work, are compiled once: six copies took the compiler four to six seconds.
 *
 * In this file TILES_BFLOAT16 means vectors that add in the order of an AMX tile, for the same bits. A tile sums the
 * even and the odd ones of TILE_INPUTS inputs separately, and then adds both. See `vectors_match_tiles`. */
#define TILE_INPUTS 32

/* A row of bfloat16s -> floats, in place. */
INLINE void as_floats(float *row, int64_t count) {
    for (int64_t i = count - LANES; i >= 0; i -= LANES) store(row + i, fetch((const char *)row + 2 * i, BFLOAT16));
}

/* Scale the queries, round them as a product would, and clear the sums. If there are fewer than max_rows queries, the
 * others are zero, and their results are not read. */
NOINLINE void load_queries(State *s, const Walk *w, const int max_rows, int kind) {
    const Rows to = {(char *)s->query, sizeof(s->query[0]), 0, w->weights.format};
    const float scale = 1 / sqrtf((float)w->dim);
    for (int h = 0; h < w->heads; h++)
        for (int r = 0; r < max_rows; r++)
            for (int d = 0; d < w->dim; d += LANES) {
                const int count = r < w->rows ? w->dim - d : 0;
                const vec x = scale * read_row(w->query, w->row + r, (w->head + h) * w->dim + d, count);
                write_row(&to, h * max_rows + r, d, x);
            }
    for (int pair = 0; pair < w->heads * max_rows; pair++) {
        if (kind == TILES_BFLOAT16) as_floats(s->query[pair], round_up(w->dim, LANES));
        memset(s->weighted[pair], 0, sizeof(s->weighted[pair]));
    }
}

/* The keys, or values, of one head in the tile that begins with key `key`. */
typedef struct {
    const char *at;
    int64_t key;
    int head;
} Piece;

/* The pieces from number `first` on, in the order of reading: the keys of all heads, tile by tile, then their values.
 * In place of pieces after the last one, which are only prefetched, any address will do. */
NOINLINE void locate(Piece *to, const Walk *w, int64_t first, int count, int64_t tiles) {
    const Cache *c = w->cache;
    const int64_t in_block = c->block_size / TILE, size = size_of((int)c->format);
    int64_t tile = first / w->heads;
    int head = (int)(first % w->heads);
    for (int i = 0; i < count; i++) {
        const int values = tile >= tiles;
        const int64_t t = tile < 2 * tiles ? tile - values * tiles : 0;
        const int64_t block = in_block == 1 ? t : t / in_block; /* divisions are slow */
        const int64_t start = (w->table[block] * c->n_head + w->head + head) * w->dim * c->block_size;
        const int64_t offset = (t - block * in_block) * TILE;
        const char *at = values ? c->values + (start + offset * w->dim) * size : c->keys + (start + offset) * size;
        to[i] = (Piece){at, t * TILE, head};
        if (++head == w->heads) head = 0, tile++;
    }
}

/* Read two vectors at once, unless there is only one (a tile, with AVX-512). 32 bits hold two bfloat16s: a shift gives
 * a vector of the first ones, a mask one of the second ones, without a widening load for each. `in_order` puts the
 * numbers of such vectors back in order. */
#define TWO(vectors) ((vectors) > 1 ? 2 : 1)
INLINE void fetch_two(vec *to, const char *from, const int vectors, const int format) {
    for (int v = 0; v < TWO(vectors); v++)
        to[v] = format == BFLOAT16 && vectors > 1 ? half_of(from, v)
                                                  : fetch(from + v * LANES * size_of(format), format);
}

INLINE void in_order(vec *two, const int vectors, const int format) {
    if (format == BFLOAT16 && vectors > 1) interleave(two);
}

/* The scores of one query with several pieces' keys, or of several queries with one piece's. scores, query: number
 * p * rows + r is for piece p and query r. prefetch: a piece to prefetch for each one that is read. stride: bytes from
 * one dimension of the keys to the next. */
INLINE void score(float *const *scores, const float *const *query, const char *const *keys,
                  const char *const *prefetch, int64_t stride, int dim, const int pieces, const int rows,
                  const int format, const int kind) {
    enum { STEP = 2 }; /* dimensions of a piece at a time */
    vec sum[QUERIES][VECS], even[QUERIES][VECS], odd[QUERIES][VECS];
    for (int i = 0; i < pieces * rows; i++)
        for (int v = 0; v < VECS; v++) sum[i][v] = even[i][v] = odd[i][v] = (vec){0};
    for (int64_t first = 0; first < dim; first += STEP) {
        for (int p = 0; p < pieces; p++)
            for (int64_t d = first; d < first + STEP; d += kind == DOT_BFLOAT16 ? 2 : 1) {
                const char *at = keys[p] + d * stride;
                const char *later = prefetch[p] + d * stride;
                /* With blocks of 16 keys of 16 bits, two dimensions share a line. */
                if (stride >= LINE || d % 2 == 0) __builtin_prefetch(later, 0, 2);
                if (stride >= LINE && kind == DOT_BFLOAT16) __builtin_prefetch(later + stride, 0, 2);
                for (int v = 0; v < VECS; v += TWO(VECS)) {
                    const char *from = at + v * LANES * size_of(format);
#ifdef HAS_DOT
                    if (kind == DOT_BFLOAT16) {
                        for (int i = v; i < v + TWO(VECS); i++, from += 2 * LANES) {
                            const ivec both = zip(from, from + stride);
                            for (int r = 0; r < rows; r++)
                                DOT(sum[p * rows + r][i], splat_pair(query[p * rows + r] + d / 2), both);
                        }
                        continue;
                    }
#endif
                    vec key[2];
                    fetch_two(key, from, VECS, format);
                    for (int i = 0; i < TWO(VECS); i++)
                        for (int r = 0; r < rows; r++) {
                            const int n = p * rows + r;
                            const vec q = splat(query[n][d]);
                            if (kind == FMA_FLOAT32) sum[n][v + i] = multiply_add(sum[n][v + i], q, key[i]);
                            else if (d % 2 == 0) even[n][v + i] = multiply_add(even[n][v + i], q, key[i]);
                            else odd[n][v + i] = multiply_add(odd[n][v + i], q, key[i]);
                        }
                }
            }
        if (kind == TILES_BFLOAT16 && ((first + STEP) % TILE_INPUTS == 0 || first + STEP == dim))
            for (int i = 0; i < pieces * rows; i++)
                for (int v = 0; v < VECS; v++)
                    sum[i][v] += even[i][v] + odd[i][v], even[i][v] = odd[i][v] = (vec){0};
    }
    for (int i = 0; i < pieces * rows; i++)
        for (int v = 0; v < VECS; v += TWO(VECS)) {
            if (kind != DOT_BFLOAT16) in_order(&sum[i][v], VECS, format);
            for (int j = v; j < v + TWO(VECS); j++) store(scores[i] + j * LANES, sum[i][j]);
        }
}

/* Add the first `count` values of a piece, each times its weight, to the sums of `dims` dimensions from `first` on.
 * dim: numbers in a value. stride: bytes from one query's weights to the next's. Dimensions past `dim` are the next
 * value's; their sums are not used. last: a copy of the piece's last value with zeros after it, so that nothing is read
 * past the cache; NULL if dim is a multiple of WIDTH. */
INLINE void add_values(vec (*weighted)[MAX_DIM / LANES], vec (*even)[MAX_DIM / LANES], vec (*odd)[MAX_DIM / LANES],
                       const char *weights, int64_t stride, const char *values, const char *last, const char *prefetch,
                       int count, int dim, int first, const int dims, const int rows, const int format,
                       const int kind) {
    const int64_t row = dim * size_of(format), begin = first * size_of(format), bytes = dims * size_of(format);
    vec sum[QUERIES][2 * WIDTH / LANES], other[QUERIES][2 * WIDTH / LANES]; /* in registers */
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < dims / LANES; v++) {
            sum[r][v] = (kind == TILES_BFLOAT16 ? even : weighted)[r][first / LANES + v];
            if (kind == TILES_BFLOAT16) other[r][v] = odd[r][first / LANES + v];
        }
#define VALUE(j) ((last && (j) == TILE - 1 ? last : values + (j) * row) + begin)
#ifdef HAS_DOT
    static const char none[2 * MAX_DIM]; /* zeros, for the second value of an odd one: the cache may hold NaN there */
    for (int j = 0; j < count && kind == DOT_BFLOAT16; j += 2) {
        const char *at = VALUE(j), *next = j + 1 < count ? VALUE(j + 1) : none;
        for (int64_t line = begin; line < begin + 2 * bytes; line += LINE)
            __builtin_prefetch(prefetch + j * row + line, 0, 2);
        for (int v = 0; v < dims / LANES; v++) {
            const ivec both = zip(at + v * LANES * 2, next + v * LANES * 2);
            for (int r = 0; r < rows; r++)
                DOT(sum[r][v], splat_pair((const float *)(weights + r * stride + j * 2)), both);
        }
    }
#endif
    for (int j = 0; j < count && kind != DOT_BFLOAT16; j++)
        for (int v = 0; v < dims / LANES; v += 2) {
            const int64_t size = LANES * size_of(format), at = v * size;
            vec pair[2];
            fetch_two(pair, VALUE(j) + at, 2, format);
            for (int64_t line = round_up(at, LINE); line < at + 2 * size; line += LINE)
                __builtin_prefetch(prefetch + j * row + begin + line, 0, 2);
            for (int i = 0; i < 2; i++)
                for (int r = 0; r < rows; r++) {
                    const vec weight = splat(((const float *)(weights + r * stride))[j]);
                    if (kind == FMA_FLOAT32 || j % 2 == 0) sum[r][v + i] = multiply_add(sum[r][v + i], weight, pair[i]);
                    else other[r][v + i] = multiply_add(other[r][v + i], weight, pair[i]);
                }
        }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < dims / LANES; v++) {
            (kind == TILES_BFLOAT16 ? even : weighted)[r][first / LANES + v] = sum[r][v];
            if (kind == TILES_BFLOAT16) odd[r][first / LANES + v] = other[r][v];
        }
}

NOINLINE void write_out(State *s, const Walk *w, const int max_rows, const int format) {
    for (int h = 0; h < w->heads; h++)
        for (int r = 0; r < w->rows; r++) {
            const int pair = h * max_rows + r;
            const float scale = 1 / s->sum[pair];
            for (int v = 0; v * LANES < w->dim; v += 2) {
                in_order(&s->weighted[pair][v], 2, format);
                for (int i = v; i < v + 2 && i * LANES < w->dim; i++)
                    write_some(w->out, w->row + r, (w->head + h) * w->dim + i * LANES,
                               multiply_add((vec){0}, s->weighted[pair][i], splat(scale)), w->dim - i * LANES);
            }
        }
}

INLINE int at_most(int64_t n, int limit) { return n < limit ? (int)n : limit; }

/* A whole walk, in three passes over all keys: scores, then weights by `softmax`, then the weighted values. */
INLINE void attend(const Walk *w, const int max_rows, const int dim, const int format, const int kind) {
    const int64_t num_keys = w->position + w->rows, tiles = (num_keys + TILE - 1) / TILE, pieces = tiles * w->heads;
    const int64_t stride = w->cache->block_size * size_of(format);
    const int side = max_rows == 1 ? SIDE : 1, all = side * max_rows;
    const int vectors = (int)round_up(dim, WIDTH) / LANES;
    Piece piece[LOCATED + SIDE + AHEAD];
    State s;
    load_queries(&s, w, max_rows, kind);
    for (int64_t first = 0; first < pieces; first += LOCATED) {
        const int count = at_most(pieces - first, LOCATED);
        locate(piece, w, first, count + SIDE + AHEAD, tiles);
        for (int i = 0; i < count; i += side) {
            const char *keys[SIDE], *prefetch[SIDE];
            const float *query[SIDE * QUERIES];
            float *scores[SIDE * QUERIES];
            for (int n = 0; n < all; n++) {
                const int p = n / max_rows;
                const Piece *here = &piece[i + p < count ? i + p : count - 1]; /* the last one, repeated */
                const int64_t pair = here->head * max_rows + n % max_rows;
                keys[p] = here->at, prefetch[p] = piece[i + p + AHEAD].at, query[n] = s.query[pair];
                scores[n] = (float *)(w->scores.data + pair * w->scores.stride) + here->key;
            }
            score(scores, query, keys, prefetch, stride, dim, side, max_rows, format, kind);
        }
    }
    for (int h = 0; h < w->heads; h++)
        for (int r = 0; r < max_rows; r++) { /* a query sees the keys up to its position */
            const int64_t pair = h * max_rows + r, visible = r < w->rows ? w->position + r + 1 : num_keys;
            float *scores = (float *)(w->scores.data + pair * w->scores.stride);
            s.sum[pair] = softmax(scores, visible, round_up(num_keys, PANEL), &w->weights, pair);
            if (kind == TILES_BFLOAT16) as_floats(scores, round_up(num_keys, PANEL));
        }
    for (int64_t first = 0; first < pieces; first += LOCATED) {
        const int count = at_most(pieces - first, LOCATED);
        locate(piece, w, pieces + first, count + AHEAD, tiles);
        for (int i = 0; i < count; i++) {
            const int64_t pair = piece[i].head * max_rows, key = piece[i].key;
            const char *weights = w->weights.data + pair * w->weights.stride + key * (kind == DOT_BFLOAT16 ? 2 : 4);
            vec (*weighted)[MAX_DIM / LANES] = &s.weighted[pair];
            vec (*even)[MAX_DIM / LANES] = &s.even[pair], (*odd)[MAX_DIM / LANES] = &s.odd[pair];
            const int visible = at_most(num_keys - key, TILE);
            if (kind == TILES_BFLOAT16 && key % TILE_INPUTS == 0)
                for (int r = 0; r < max_rows; r++)
                    for (int v = 0; v < vectors; v++) even[r][v] = odd[r][v] = (vec){0};
            char last[2 * MAX_DIM * sizeof(float)];
            if (dim % WIDTH && visible == TILE) {
                memset(last, 0, sizeof(last));
                memcpy(last, piece[i].at + (TILE - 1) * dim * size_of(format), (size_t)(dim * size_of(format)));
            }
#define ADD(dims) \
    add_values(weighted, even, odd, weights, w->weights.stride, piece[i].at, dim % WIDTH ? last : NULL, \
               piece[i + AHEAD].at, visible, dim, first_dim, dims, max_rows, format, kind)
            int first_dim = 0;
            for (; first_dim + WIDTH < dim; first_dim += 2 * WIDTH) ADD(2 * WIDTH);
            if (first_dim < dim) ADD(WIDTH);
            if (kind == TILES_BFLOAT16 && (key % TILE_INPUTS != 0 || key + TILE >= num_keys))
                for (int r = 0; r < max_rows; r++)
                    for (int v = 0; v < vectors; v++) weighted[r][v] += even[r][v] + odd[r][v];
        }
    }
    write_out(&s, w, max_rows, kind == DOT_BFLOAT16 ? FLOAT32 : format);
}

/* Some heads of a request: for all its queries, by products (first < 0), or for up to QUERIES from `first` on. */
struct Item { int64_t request, first, head, end; };

/* For a single query, GPT-2's head_dim is a constant as well: with it, bfloat16s in a cache are read a tenth faster. */
#define ATTEND(format, kind) \
    w->rows != 1 ? attend(w, QUERIES, w->dim, format, kind) \
    : w->dim == 64 ? attend(w, 1, 64, format, kind) : attend(w, 1, w->dim, format, kind)

static void attend_by_fma(const Walk *w) {
    switch (w->cache->format) {
        case FLOAT32: ATTEND(FLOAT32, FMA_FLOAT32); break;
        case BFLOAT16: ATTEND(BFLOAT16, FMA_FLOAT32); break;
        case FLOAT16: ATTEND(FLOAT16, FMA_FLOAT32); break;
    }
}

NOINLINE void attend_by_dots(const Walk *w) {
#ifdef HAS_DOT
    ATTEND(BFLOAT16, DOT_BFLOAT16);
#endif
}

NOINLINE void attend_as_tiles(const Walk *w) {
#ifdef __AMX_BF16__
    ATTEND(BFLOAT16, TILES_BFLOAT16);
#endif
}

/* An item with a decode, or with few queries. memory: decode_attention_bytes. */
static void decode_attention(const Rows *out, const Rows *query, const Cache *c, const Step *step,
                             const Item *item, int kind, char *memory) {
    const int64_t left = step->query_start_loc[item->request + 1] - item->first;
    const int64_t num_keys = step->seq_lens[item->request];
    const Rows scores = {memory, row_bytes(num_keys), 0, FLOAT32};
    Walk w = {.cache = c,
              .table = step->block_tables + item->request * step->table_width,
              .query = query,
              .out = out,
              .row = item->first,
              .position = num_keys - left,
              .rows = at_most(left, QUERIES),
              .dim = (int)c->head_dim,
              .scores = scores,
              .weights = {memory, scores.stride, 0, rows_format(kind)}};
    const int together = w.rows == 1 ? HEADS : 1;
    for (w.head = item->head; w.head < item->end; w.head += together) {
        w.heads = at_most(item->end - w.head, together);
        if (kind == DOT_BFLOAT16) attend_by_dots(&w);
        else if (kind == TILES_BFLOAT16) attend_as_tiles(&w);
        else attend_by_fma(&w);
    }
}

static int64_t decode_attention_bytes(int64_t num_keys) { return PAIRS * row_bytes(num_keys); }

/* A number of a trial's keys (part 0), values or queries, for dimension d of a token. Most are from 2^-7 to 2, of either
 * sign. In every eighth dimension keys and values are subnormal, and queries huge; in others some values are infinite,
 * or all but a few are zero. Every second query is larger, so that weights go down to 2^-125. */
static uint16_t trial(int part, int64_t token, int64_t d, uint32_t random) {
    enum { QUERY = 2, VALUE = 1, TINY = 1, ZEROS, INFINITE, SIXTY_FOUR_TIMES = 6 << 7 };
    const int few = (random >> 26) % 16 == 0;
    uint32_t bits = 0x3c00 + (random >> 16) % 0x400;
    if (d % 8 == TINY) bits = part == QUERY ? 0x7c00 + (random >> 16) % 0x200 : (random >> 16) % 0x100;
    else if (part == QUERY && token % 2) bits += SIXTY_FOUR_TIMES;
    if (part == VALUE && d % 8 == ZEROS && !few) bits = 0;
    if (part == VALUE && d % 8 == INFINITE && few) bits = 0x7f80;
    return (uint16_t)(bits | (random >> 16 & 0x8000));
}

/* Whether vectors give the bits of this CPU's tiles, for one head of this size and every context up to TRIED tokens. */
__attribute__((unused)) static int try_tiles(int64_t dim) {
    enum { TRIED = 150, BLOCKS = (TRIED + TILE - 1) / TILE };
    const int64_t bytes = BLOCKS * TILE * dim * 2, for_tiles = prefill_attention_bytes(TRIED, dim);
    const int64_t for_vectors = decode_attention_bytes(TRIED);
    char *memory = aligned_alloc(64, (size_t)round_up(for_tiles + for_vectors + 3 * bytes, 64));
    if (!memory) return 0;
    int64_t table[BLOCKS], starts[2] = {0, 1}, length;
    uint16_t *numbers = (uint16_t *)(memory + for_tiles + for_vectors); /* keys, values, queries */
    uint32_t random = 1;
    for (int part = 0; part < 3; part++)
        for (int64_t i = 0; i < bytes / 2; i++) {
            random = random * 1664525 + 1013904223;
            numbers[part * bytes / 2 + i] = trial(part, i / dim, part == 0 ? i / TILE % dim : i % dim, random);
        }
    for (int64_t b = 0; b < BLOCKS; b++) table[b] = b;
    const Cache cache = {(char *)numbers, (char *)numbers + bytes, 1, dim, TILE, BFLOAT16};
    const Rows query = {(char *)numbers + 2 * bytes, dim * 2, 0, BFLOAT16};
    int same = 1;
    begin_products(TILES_BFLOAT16);
    for (length = 1; length <= TRIED; length++) {
        float results[2][MAX_DIM];
        const Rows out[2] = {{(char *)results[0], 0, 0, FLOAT32}, {(char *)results[1], 0, 0, FLOAT32}};
        const Step step = {.block_tables = table, .query_start_loc = starts, .seq_lens = &length, .num_tokens = 1,
                           .num_seqs = 1, .table_width = BLOCKS};
        const Rows last = {query.data + (length - 1) * query.stride, query.stride, 0, BFLOAT16};
        prefill_attention(&out[0], &last, &cache, &step, 0, 0, TILES_BFLOAT16, memory);
        decode_attention(&out[1], &last, &cache, &step, &(Item){0, 0, 0, 1}, TILES_BFLOAT16, memory + for_tiles);
        for (int64_t d = 0; d < dim; d++)
            same &= memcmp(&results[0][d], &results[1][d], 4) == 0 || (isnan(results[0][d]) && isnan(results[1][d]));
    }
    end_products(TILES_BFLOAT16);
    free(memory);
    return same;
}

/* Tried once, because only Intel's manual says how a tile adds (vol. 2, TDPBF16PS). On a CPU that adds in another
 * order, decodes use the tiles too, which is slower. */
static int vectors_match_tiles(void) {
#ifdef __AMX_BF16__
    static int known = -1;
    if (known < 0) known = try_tiles(64) && try_tiles(24);
    return known;
#else
    return 0;
#endif
}

/* Whether a request goes through products. They pay for many queries, and they handle every size and kind. */
static int by_products(const Step *step, const Cache *c, int64_t i, int kind, int prompts) {
    const int64_t count = step->query_start_loc[i + 1] - step->query_start_loc[i];
    const int fits = c->head_dim >= WIDTH / 2 && c->head_dim <= MAX_DIM && c->head_dim % 2 == 0;
    return (prompts && count >= PROMPT) || !fits || c->block_size % TILE != 0 ||
           (kind == TILES_BFLOAT16 && !vectors_match_tiles());
}

int plan_attention(Plan *plan, const Step *step, const Cache *cache, int kind, int prompts, int threads) {
    const int64_t n_head = cache->n_head;
    Item *items = malloc(sizeof(Item) * (size_t)(step->num_tokens * n_head + 1));
    int64_t count = 0, decodes = 0;
    *plan = (Plan){.items = items};
    if (!items) return -1;
    for (int64_t i = 0; i < step->num_seqs; i++) { /* large items first: small ones fill the gaps at the end */
        const int64_t num_queries = step->query_start_loc[i + 1] - step->query_start_loc[i];
        const int products = by_products(step, cache, i, kind, prompts);
        const int64_t bytes = products ? prefill_attention_bytes(step->seq_lens[i], cache->head_dim)
                                       : decode_attention_bytes(step->seq_lens[i]);
        if (num_queries && bytes > plan->bytes) plan->bytes = bytes;
        if (!products) decodes += (num_queries + QUERIES - 1) / QUERIES;
        else if (num_queries)
            for (int64_t head = 0; head < n_head; head++) items[count++] = (Item){i, -1, head, head + 1};
    }
    /* Heads per decode item: many give long runs of memory, few give enough items for all threads, four for each. */
    const int64_t wanted = decodes * n_head / (4 * threads);
    const int64_t heads = wanted < 1 ? 1 : wanted < n_head ? wanted : n_head;
    for (int64_t i = 0; i < step->num_seqs; i++) {
        if (by_products(step, cache, i, kind, prompts)) continue;
        for (int64_t q = step->query_start_loc[i]; q < step->query_start_loc[i + 1]; q += QUERIES)
            for (int64_t head = 0; head < n_head; head += heads)
                items[count++] = (Item){i, q, head, head + heads < n_head ? head + heads : n_head};
    }
    plan->count = count;
    if (!plan->bytes) return 0;
    plan->memory = aligned_alloc(64, (size_t)(plan->bytes * threads));
    return plan->memory ? 0 : -1;
}

void free_plan(Plan *plan) {
    free(plan->items);
    free(plan->memory);
}

void paged_attention(const Team *team, const Rows *out, const Rows *query, const Cache *cache,
                     const Step *step, const Plan *plan, int kind) {
    begin_products(kind);
    DYNAMIC_FOR(n, plan->count, team) {
        const Item *item = &plan->items[n];
        char *memory = plan->memory + plan->bytes * team->rank;
        if (item->first < 0)
            prefill_attention(out, query, cache, step, item->request, item->head, kind, memory);
        else decode_attention(out, query, cache, step, item, kind, memory);
    }
    end_products(kind);
    barrier(team);
}

/* One head of one token: its key becomes a column of the block's keys, its value a row of the values. */
INLINE void write_one(const Cache *c, const char *k, const char *v, char *keys, char *values,
                      const int64_t size) {
    const int64_t step = c->block_size * size;
    for (int64_t d = 0; d < c->head_dim; d++) {
        __builtin_prefetch(keys + (d + c->head_dim) * step, 1); /* the next head's */
        memcpy(keys + d * step, k + d * size, (size_t)size);
    }
    memcpy(values, v, (size_t)(c->head_dim * size));
    /* A value that is not finite becomes zeros with a NaN key: see kv_cache.py. */
    static const uint32_t exponents[] = {0x7f800000, 0x7f80, 0x7c00}; /* of infinity and NaN, by format */
    static const uint32_t nan[] = {0x7fc00000, 0x7fc0, 0x7e00}; /* exponential() would make a number of all ones */
    int is_finite = 1;
    for (int64_t d = 0; d < c->head_dim; d++) {
        uint32_t bits = 0;
        memcpy(&bits, v + d * size, (size_t)size);
        is_finite &= (bits & exponents[c->format]) != exponents[c->format];
    }
    if (is_finite) return;
    memcpy(keys, &nan[c->format], (size_t)size);
    memset(values, 0, (size_t)(c->head_dim * size));
}

/* Each number of a key goes to a different cache line of its block. So the tokens of a block are written together, head
 * by head, while these lines are in the cache. */
void write_kv(const Team *team, const Cache *c, const Rows *qkv, const Step *step) {
    const int64_t size = size_of((int)c->format), width = c->n_head * c->head_dim * size;
    const int64_t *slots = step->slot_mapping, n = step->num_tokens;
    PARALLEL_FOR(first, n, team) {
        const int64_t block = slots[first] / c->block_size;
        if (first > 0 && slots[first - 1] / c->block_size == block) continue; /* not its block's first */
        int64_t end = first + 1;
        while (end < n && slots[end] / c->block_size == block) end++;
        for (int64_t head = 0; head < c->n_head; head++)
            for (int64_t t = first; t < end; t++) {
                const int64_t start = (block * c->n_head + head) * c->head_dim * c->block_size;
                const int64_t offset = slots[t] % c->block_size;
                const char *k = qkv->data + t * qkv->stride + width + head * c->head_dim * size;
                char *keys = c->keys + (start + offset) * size;
                char *values = c->values + (start + offset * c->head_dim) * size;
                if (size == 4) write_one(c, k, k + width, keys, values, 4);
                else write_one(c, k, k + width, keys, values, 2);
            }
    }
    barrier(team);
}
