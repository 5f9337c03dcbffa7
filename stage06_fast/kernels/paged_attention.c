/* Attention over a paged KV cache, on a CPU. One call does one layer of one step.
 *
 * The step's tokens stand one behind the other: request i owns the queries query_start_loc[i] to query_start_loc[i + 1],
 * and has seq_lens[i] keys; its queries belong to the last of them. Position p of it is row p % block_size of the block
 * block_tables[i][p / block_size].
 *
 *   query    [num_tokens, n_head * head_dim]             float32, or the type of the cache
 *   keys     [num_blocks, n_head, head_dim, block_size]  float32, bfloat16 or float16: the keys of a block, transposed
 *   values   [num_blocks, n_head, block_size, head_dim]  the same type
 *   out      [num_tokens, n_head * head_dim]             rows for the next product
 *
 * There are two kinds of work. A request with many queries (a prefill) is two matrix products, see prefill_attention.c.
 * One with few queries (a decode) is here, and for it memory is the limit: it does two operations with each number that it
 * reads. So keys and values are read once, from where they lie, and the arithmetic is arranged so that it keeps up:
 *
 * - The work is cut into items: some heads of one request, for up to QUERIES of its queries. Threads take them as they come.
 * - An item walks along the keys, a chunk of them at a time, and of the past it keeps a maximum, a sum and a weighted sum of
 *   values for each query: the online softmax (Milakov and Gimelshein 2018; Dao et al. 2022, "FlashAttention", sec. 3.1).
 * - Transposed keys lie side by side, so a vector takes one number of each of many keys, and their scores grow together:
 *   scores[0..15] += query[d] * keys[d][0..15]. With whole keys behind each other every single score would have to be
 *   summed up across a vector, which costs more than its products.
 * - What is read is used for all QUERIES queries. A single query has all heads walk together: a block's heads lie side by side,
 *   so memory is read in runs of 48 KB (of GPT-2 small's float32) and not of 4 KB with gaps between them, in which the CPU's
 *   prefetcher would lose the thread each time.
 * - Where the next block lies it can't guess at all. So while a piece, one head's keys or values of a tile, is computed, the
 *   one that comes AHEAD pieces later is asked for from memory, into the level 2 cache: four pieces of float32 are 16 KB,
 *   half of what the level 1 cache of many CPUs holds.
 *
 * All GPT-2s have head_dim 64; they, with blocks of 16, 32, ... tokens, are computed in place. Other sizes are copied tile
 * by tile first, which is slower.
 */
#include <math.h>
#include <stdlib.h>
#include "kernels.h"

#define TILE 16 /* keys */
#define VECS (TILE / LANES)
#define QUERIES 8     /* queries of an item */
#define HEADS 16      /* that one query's attention goes through together */
#define CHUNK_TILES 4 /* tiles in a chunk */
#define CHUNK (CHUNK_TILES * TILE)
#define AHEAD 4       /* pieces */
#define PROMPT 8      /* from so many queries on, packing a request's keys for products pays */
#define MAX_DIM 256   /* the largest head_dim */

/* A piece: the keys of a tile and a head, the distance in bytes from one dimension of them to the next, the values. */
typedef struct { const char *keys, *values; int64_t stride; } Piece;

/* Tile t of a request, in place. */
INLINE Piece locate(const Cache *c, const int64_t *table, int64_t head, int64_t t, int format, int dim) {
    const int64_t in_block = c->block_size / TILE, block = in_block == 1 ? t : t / in_block; /* divisions are slow */
    const int64_t start = (table[block] * c->n_head + head) * dim * c->block_size, row = (t - block * in_block) * TILE;
    return (Piece){c->keys + (start + row) * size_of(format), c->values + (start + row * dim) * size_of(format),
                  c->block_size * size_of(format)};
}

/* The pieces of a chunk that begins at key `first`, tile by tile, as they lie in memory; returns how many there are. */
INLINE int locate_all(Piece *pieces, const Cache *c, const int64_t *table, int64_t head, int heads, int64_t first,
                      int64_t num_keys, int format, int dim) {
    int count = 0;
    for (int64_t key = first; key < first + CHUNK && key < num_keys; key += TILE)
        for (int h = 0; h < heads; h++) pieces[count++] = locate(c, table, head + h, key / TILE, format, dim);
    return count;
}

/* The same for any size: number by number into `buffer`, as float32. dim is head_dim rounded up to whole tiles. */
static Piece gather(const Cache *c, const int64_t *table, int64_t head, int64_t first, int64_t count, int dim, float *buffer) {
    float *keys = buffer, *values = buffer + TILE * dim;
    memset(buffer, 0, sizeof(float) * 2 * TILE * (size_t)dim);
    for (int64_t j = 0; j < count && j < TILE; j++) {
        const int64_t block = table[(first + j) / c->block_size], row = (first + j) % c->block_size;
        const int64_t start = (block * c->n_head + head) * c->head_dim * c->block_size;
        for (int64_t d = 0; d < c->head_dim; d++) {
            keys[d * TILE + j] = fetch_one(c->keys, start + d * c->block_size + row, (int)c->format);
            values[j * dim + d] = fetch_one(c->values, start + row * c->head_dim + d, (int)c->format);
        }
    }
    return (Piece){(const char *)keys, (const char *)values, 4 * TILE};
}

/* Some heads of `rows` queries, the first of them at `position`. max_rows, in_place, format and (in place) dim are constants
 * wherever this is called: each call becomes a routine of its own, with its sums in registers. */
INLINE void attend(const Cache *c, const int64_t *table, int64_t head, int heads, const Rows *query, const Rows *out, int64_t row,
                   int64_t position, int rows, const int max_rows, const int in_place, const int format, const int dim) {
    enum { PARTS = 4 };
    const int parts = max_rows == 1 ? PARTS : 1; /* one row alone would wait for each sum: let it have four */
    const int most_heads = max_rows == 1 ? HEADS : 1;
    const int64_t num_keys = position + rows;
    const float scale = 1 / sqrtf((float)c->head_dim);
    float q[most_heads][max_rows][dim], maximum[most_heads][max_rows], weights[most_heads][max_rows][CHUNK];
    float buffer[CHUNK_TILES][in_place ? 1 : 2 * TILE * dim];
    vec sum[most_heads][max_rows], weighted[most_heads][max_rows][dim / LANES]; /* of e^score, and of e^score * value */
    for (int h = 0; h < heads; h++)
        for (int r = 0; r < max_rows; r++) {
            for (int d = 0; d < dim; d += LANES) {
                const int64_t left = r < rows ? c->head_dim - d : 0;
                store(&q[h][r][d], scale * read_row(query, row + r, (head + h) * c->head_dim + d, left));
            }
            for (int d = 0; d < dim / LANES; d++) weighted[h][r][d] = (vec){0};
            maximum[h][r] = -INFINITY, sum[h][r] = (vec){0};
        }
    Piece piece[CHUNK_TILES * HEADS], next[CHUNK_TILES * HEADS]; /* of this chunk, and of the next one */
    int num_pieces = in_place ? locate_all(next, c, table, head, heads, 0, num_keys, format, dim) : 0;
    for (int64_t first = 0; first < num_keys; first += CHUNK) {
        const int count = num_keys - first < CHUNK ? (int)(num_keys - first) : CHUNK, tiles = (count + TILE - 1) / TILE;
        int num_next = 0;
        if (in_place) {
            memcpy(piece, next, sizeof(Piece) * (size_t)num_pieces);
            num_next = locate_all(next, c, table, head, heads, first + CHUNK, num_keys, format, dim);
        } else {
            for (int t = 0; t < tiles; t++) piece[t] = gather(c, table, head, first + t * TILE, count - t * TILE, dim, buffer[t]);
            num_pieces = tiles;
        }

        for (int t = 0; t < tiles; t++)
            for (int h = 0; h < heads; h++) {
                const int this = t * heads + h, then = this + AHEAD, over = then - num_pieces;
                const char *keys = piece[this].keys;
                const char *ahead = over < 0 ? piece[then].keys : over < num_pieces ? piece[over].values : keys;
                vec scores[QUERIES][PARTS][VECS];
                for (int r = 0; r < max_rows; r++)
                    for (int p = 0; p < parts; p++)
                        for (int v = 0; v < VECS; v++) scores[r][p][v] = (vec){0};
                for (int d = 0; d < dim; d += parts)
                    for (int p = 0; p < parts; p++) {
                        const int64_t at = (d + p) * piece[this].stride;
                        __builtin_prefetch(ahead + at, 0, 2);
                        for (int v = 0; v < VECS; v++) {
                            const vec some = fetch(keys + at + v * LANES * size_of(format), format);
                            for (int r = 0; r < max_rows; r++) scores[r][p][v] += q[h][r][d + p] * some;
                        }
                    }
                for (int r = 0; r < max_rows; r++)
                    for (int v = 0; v < VECS; v++) {
                        for (int p = 1; p < parts; p++) scores[r][0][v] += scores[r][p][v];
                        store(&weights[h][r][t * TILE + v * LANES], scores[r][0][v]);
                    }
            }
        for (int h = 0; h < heads; h++)
            for (int r = 0; r < max_rows; r++) {
                const int64_t seen = position + r + 1 - first; /* a query sees the keys up to its own */
                float *w = weights[h][r];
                for (int j = seen < 0 ? 0 : seen < count ? (int)seen : count; j < tiles * TILE; j++) w[j] = -INFINITY;
                vec best = load(w);
                for (int j = LANES; j < tiles * TILE; j += LANES) best = larger(load(w + j), best);
                const float highest = largest_of(best);
                if (highest > maximum[h][r]) { /* bring the past to the new scale */
                    const vec shrink = exponential(splat(maximum[h][r] - highest));
                    sum[h][r] *= shrink, maximum[h][r] = highest;
                    for (int d = 0; d < dim / LANES; d++) weighted[h][r][d] *= shrink;
                }
                for (int j = 0; j < tiles * TILE; j += LANES) {
                    const vec score = load(w + j), e = exponential(score - maximum[h][r]);
                    store(w + j, (vec)((ivec)e & (score > -INFINITY))); /* nothing at all for a key that is not seen */
                    sum[h][r] += load(w + j);
                }
            }
        for (int t = 0; t < tiles; t++)
            for (int h = 0; h < heads; h++) {
                const int this = t * heads + h, then = this + AHEAD, over = then - num_pieces;
                const char *values = piece[this].values;
                const char *ahead = over < 0 ? piece[then].values : over < num_next ? next[over].keys : values;
                vec past[max_rows][dim / LANES]; /* in registers meanwhile */
                memcpy(past, weighted[h], sizeof past);
                for (int j = 0; j < TILE && t * TILE + j < count; j++)
                    for (int d = 0; d < dim / LANES; d++) {
                        const int64_t at = (j * dim + d * LANES) * size_of(format);
                        const vec some = fetch(values + at, format);
                        __builtin_prefetch(ahead + at, 0, 2);
                        for (int r = 0; r < max_rows; r++) past[r][d] += weights[h][r][t * TILE + j] * some;
                    }
                memcpy(weighted[h], past, sizeof past);
            }
        num_pieces = num_next;
    }
    for (int h = 0; h < heads; h++)
        for (int r = 0; r < rows; r++) {
            const float total = 1 / sum_of(sum[h][r]);
            for (int64_t d = 0; d < c->head_dim; d += LANES)
                write_some(out, row + r, (head + h) * c->head_dim + d, weighted[h][r][d / LANES] * total, c->head_dim - d);
        }
}

/* The heads from `head` to `end` of up to QUERIES queries of request i, the first of them `first`. */
static void decode_attention(const Rows *out, const Rows *query, const Cache *c, const Step *step, int64_t i, int64_t first,
                             int64_t head, int64_t end) {
    const int dim = (int)round_up(c->head_dim, TILE);
    const int format = c->head_dim == 64 && c->block_size % TILE == 0 ? (int)c->format : -1;
    const int64_t last = step->query_start_loc[i + 1], position = step->seq_lens[i] - (last - first);
    const int64_t *table = step->block_tables + i * step->table_width;
    const int rows = last - first < QUERIES ? (int)(last - first) : QUERIES, together = rows == 1 && format >= 0 ? HEADS : 1;
    for (; head < end; head += together) {
        const int heads = end - head < together ? (int)(end - head) : together;
#define ATTEND(...) attend(c, table, head, heads, query, out, first, position, rows, __VA_ARGS__)
        switch (rows == 1 ? format : format + 10) {
            case FLOAT32: ATTEND(1, 1, FLOAT32, 64); break;
            case BFLOAT16: ATTEND(1, 1, BFLOAT16, 64); break;
            case FLOAT16: ATTEND(1, 1, FLOAT16, 64); break;
            case 10 + FLOAT32: ATTEND(QUERIES, 1, FLOAT32, 64); break;
            case 10 + BFLOAT16: ATTEND(QUERIES, 1, BFLOAT16, 64); break;
            case 10 + FLOAT16: ATTEND(QUERIES, 1, FLOAT16, 64); break;
            default: ATTEND(QUERIES, 0, FLOAT32, dim);
        }
    }
}

/* Some heads of a request's queries: of all of them (first < 0), or of up to QUERIES from `first` on. */
struct Item { int64_t request, first, head, end; };

/* Whether a request's queries are so many that they go through products. */
static int is_prompt(const Step *step, int64_t i, int kind) {
    return kind >= 0 && step->query_start_loc[i + 1] - step->query_start_loc[i] >= PROMPT;
}

int plan_attention(Plan *plan, const Step *step, const Cache *cache, int kind, int threads) {
    const int64_t n_head = cache->n_head;
    Item *items = malloc(sizeof(Item) * (size_t)(step->num_tokens * n_head + 1));
    int64_t count = 0, decodes = 0, longest = 0;
    *plan = (Plan){.items = items};
    if (!items) return -1;
    for (int64_t i = 0; i < step->num_seqs; i++) /* large ones first, so that small ones fill up the end */
        if (is_prompt(step, i, kind)) {
            if (step->seq_lens[i] > longest) longest = step->seq_lens[i];
            for (int64_t head = 0; head < n_head; head++) items[count++] = (Item){i, -1, head, head + 1};
        } else decodes += (step->query_start_loc[i + 1] - step->query_start_loc[i] + QUERIES - 1) / QUERIES;
    /* Heads of a decode's item: many make long runs of memory, few make enough items for all threads. */
    const int64_t share = decodes * n_head / (4 * threads), heads = share < 1 ? 1 : share < n_head ? share : n_head;
    for (int64_t i = 0; i < step->num_seqs; i++)
        for (int64_t q = step->query_start_loc[i]; q < step->query_start_loc[i + 1] && !is_prompt(step, i, kind); q += QUERIES)
            for (int64_t head = 0; head < n_head; head += heads)
                items[count++] = (Item){i, q, head, head + heads < n_head ? head + heads : n_head};
    plan->count = count;
    if (!longest) return 0;
    plan->bytes = prefill_attention_bytes(longest, cache->head_dim);
    plan->memory = aligned_alloc(64, (size_t)(plan->bytes * threads));
    return plan->memory ? 0 : -1;
}

void free_plan(Plan *plan) {
    free(plan->items);
    free(plan->memory);
}

void paged_attention(const Team *team, const Rows *out, const Rows *query, const Cache *cache, const Step *step,
                     const Plan *plan, int kind) {
    if (kind >= 0) begin_products(kind);
    IN_ORDER(n, plan->count, team) {
        const Item *item = &plan->items[n];
        char *memory = plan->memory + plan->bytes * team->me;
        if (item->first < 0) prefill_attention(out, query, cache, step, item->request, item->head, kind, memory);
        else decode_attention(out, query, cache, step, item->request, item->first, item->head, item->end);
    }
    if (kind >= 0) end_products(kind);
    meet(team);
}

/* One head of one token. */
INLINE void write_one(const Cache *c, const char *k, const char *v, char *keys, char *values, const int64_t size) {
    const int64_t step = c->block_size * size;
    for (int64_t d = 0; d < c->head_dim; d++) {
        __builtin_prefetch(keys + (d + c->head_dim) * step, 1); /* the next head's */
        memcpy(keys + d * step, k + d * size, (size_t)size);
    }
    memcpy(values, v, (size_t)(c->head_dim * size));
}

/* A key is spread over its block: each of its numbers goes to another line of the CPU's cache. So the tokens of a block are
 * written together, head by head, while these lines are there. */
void write_kv(const Team *team, const Cache *c, const Rows *qkv, const Step *step) {
    const int64_t size = size_of((int)c->format), width = c->n_head * c->head_dim * size, n = step->num_tokens;
    const int64_t *slots = step->slot_mapping;
    EACH(first, n, team) {
        const int64_t block = slots[first] / c->block_size;
        if (first > 0 && slots[first - 1] / c->block_size == block) continue; /* not the first one of its block */
        int64_t end = first + 1;
        while (end < n && slots[end] / c->block_size == block) end++;
        for (int64_t head = 0; head < c->n_head; head++)
            for (int64_t t = first; t < end; t++) {
                const int64_t start = (block * c->n_head + head) * c->head_dim * c->block_size, row = slots[t] % c->block_size;
                const char *k = qkv->data + t * qkv->stride + width + head * c->head_dim * size, *v = k + width;
                char *keys = c->keys + (start + row) * size, *values = c->values + (start + row * c->head_dim) * size;
                if (size == 4) write_one(c, k, v, keys, values, 4);
                else write_one(c, k, v, keys, values, 2);
            }
    }
    meet(team);
}
