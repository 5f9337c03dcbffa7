/* Attention over a paged KV cache, on a CPU. One call does one layer of one step.
 *
 * The step's tokens stand one behind the other: request i owns the queries query_start_loc[i] to
 * query_start_loc[i + 1], and has seq_lens[i] keys; its queries belong to the last of them. Position p of it
 * is row p % block_size of the block block_tables[i][p / block_size].
 *
 *   query    [num_tokens, n_head * head_dim]             float32, or the type of the cache
 *   keys     [num_blocks, n_head, head_dim, block_size]  float32, bfloat16 or float16; keys transposed
 *   values   [num_blocks, n_head, block_size, head_dim]  the same type
 *   out      [num_tokens, n_head * head_dim]             rows for the next product
 *
 * There are two kinds of work. A request with many queries (a prefill) is two matrix products, see
 * prefill_attention.c. One with few queries (a decode) is here, and for it memory is the limit: it does two
 * operations with each number that it reads. So keys and values are read once, from where they lie, and the
 * arithmetic is arranged so that it keeps up:
 *
 * - The work is cut into items: some heads of one request, for up to QUERIES of its queries. Threads take
 *   them as they come.
 * - An item walks along the keys, a chunk of them at a time, and of the past it keeps, for each pair of a
 *   head and a query, the highest score, a sum of weights and a weighted sum of values: the online softmax
 *   (Milakov and Gimelshein 2018; Dao et al. 2022, "FlashAttention", sec. 3.1).
 * - Transposed keys lie side by side, so a vector takes one number of each of many keys, and their scores
 *   grow together: scores[0..15] += query[d] * keys[d][0..15]. With whole keys behind each other every single
 *   score would have to be summed up across a vector, which costs more than its products.
 * - What is read is used for all QUERIES queries. A single query has all heads walk together: a block's heads
 *   lie side by side, so memory is read in runs of 48 KB (of GPT-2 small's float32) and not of 4 KB with gaps
 *   between them, in which the CPU's prefetcher would lose the thread each time.
 * - Where the next block lies it can't guess at all. So while a piece, one head's keys or values of a tile,
 *   is computed, the one that comes AHEAD pieces later is asked for from memory, into the level 2 cache: four
 *   pieces of float32 are 16 KB, half of what the level 1 cache of many CPUs holds.
 *
 * All GPT-2s have head_dim 64; they, with blocks of 16, 32, ... tokens, are what this is for.
 * `attend_plainly` computes all other sizes.
 */
#include <math.h>
#include <stdlib.h>
#include "kernels.h"

#define TILE 16 /* keys */
#define VECS (TILE / LANES)
#define DIM 64        /* the head_dim of every GPT-2 */
#define QUERIES 8     /* of a head, that are computed together */
#define HEADS 16      /* of a single query, that are computed together */
#define CHUNK_TILES 4 /* tiles in a chunk */
#define CHUNK (CHUNK_TILES * TILE)
#define AHEAD 4       /* pieces */
#define LINE 64       /* bytes that memory gives at once */
#define PROMPT 8      /* from so many queries on, packing a request's keys for products pays */
#define MAX_DIM 256   /* the largest head_dim */

/* Some heads of one query, or some queries of one head, that walk along the keys together. */
typedef struct {
    const Cache *cache;
    const int64_t *table; /* the request's blocks */
    const Rows *query, *out;
    int64_t row, position; /* the first query's row in these, and its position in the request */
    int64_t head;          /* the first one */
    int heads, rows;
} Walk;

/* One head of query r, for heads and blocks of any size: the online softmax in plain loops, as in stage 5. */
NOINLINE void attend_plainly(const Walk *w, int64_t head, int r) {
    const Cache *c = w->cache;
    const int format = (int)c->format;
    const int64_t column = head * c->head_dim;
    const float scale = 1 / sqrtf((float)c->head_dim);
    const Rows values = {c->values, c->head_dim * size_of(format), 0, format}; /* of all blocks and heads */
    float query[MAX_DIM], maximum = -INFINITY, sum = 0;
    vec weighted[MAX_DIM / LANES] = {0};
    for (int64_t d = 0; d < c->head_dim; d += LANES)
        store(query + d, scale * read_row(w->query, w->row + r, column + d, c->head_dim - d));
    for (int64_t p = 0; p <= w->position + r; p++) {
        const int64_t block = w->table[p / c->block_size] * c->n_head + head, row = p % c->block_size;
        float score = 0;
        for (int64_t d = 0; d < c->head_dim; d++)
            score += query[d] * fetch_one(c->keys, (block * c->head_dim + d) * c->block_size + row, format);
        if (score > maximum) {
            const float shrink = expf(maximum - score);
            maximum = score, sum *= shrink;
            for (int64_t d = 0; d < c->head_dim; d += LANES) weighted[d / LANES] *= shrink;
        }
        const float weight = expf(score - maximum);
        sum += weight;
        for (int64_t d = 0; d < c->head_dim; d += LANES) {
            const vec value = read_row(&values, block * c->block_size + row, d, c->head_dim - d);
            weighted[d / LANES] += weight * value;
        }
    }
    for (int64_t d = 0; d < c->head_dim; d += LANES)
        write_some(w->out, w->row + r, column + d, weighted[d / LANES] * (1 / sum), c->head_dim - d);
}

/* All that is known of each pair of a head and a query: pair h * max_rows + r is head h of query r. The
 * functions below fill it in, chunk by chunk. */
#define PAIRS (HEADS > QUERIES ? HEADS : QUERIES)
typedef struct {
    float query[PAIRS][DIM];
    float weights[CHUNK_TILES][PAIRS][TILE]; /* of a chunk's keys: their scores, then e^(score - maximum) */
    float maximum[PAIRS];
    vec sum[PAIRS], weighted[PAIRS][DIM / LANES]; /* of the weights, and of weight * value, so far */
} State;

/* max_rows, 1 or QUERIES, and format are constants wherever the functions below are called. So for each
 * combination the inline ones become one routine, with loops of fixed length and sums in registers. The
 * others are compiled once for all: they are a small part of the work, and six copies took the compiler four
 * to six seconds. */

/* There may be fewer than max_rows queries: the others are zero, and what becomes of them is not read. */
NOINLINE void load_queries(State *s, const Walk *w, const int max_rows) {
    const float scale = 1 / sqrtf(DIM);
    for (int h = 0; h < w->heads; h++)
        for (int r = 0; r < max_rows; r++) {
            const int pair = h * max_rows + r, count = r < w->rows ? LANES : 0;
            for (int d = 0; d < DIM; d += LANES) {
                const vec some = read_row(w->query, w->row + r, (w->head + h) * DIM + d, count);
                store(&s->query[pair][d], scale * some);
                s->weighted[pair][d / LANES] = (vec){0};
            }
            s->maximum[pair] = -INFINITY, s->sum[pair] = (vec){0};
        }
}

/* Where head h's keys and values of a tile begin. */
typedef struct { const char *keys, *values; } Piece;

INLINE Piece locate(const Walk *w, int h, int64_t tile, const int format) {
    const Cache *c = w->cache;
    const int64_t in_block = c->block_size / TILE, size = size_of(format);
    const int64_t block = in_block == 1 ? tile : tile / in_block; /* divisions are slow */
    const int64_t start = (w->table[block] * c->n_head + w->head + h) * DIM * c->block_size;
    const int64_t row = (tile - block * in_block) * TILE;
    return (Piece){c->keys + (start + row) * size, c->values + (start + row * DIM) * size};
}

/* The pieces of the chunk that begins at key `first`, in the order in which they are read: the keys of all,
 * tile by tile as they lie in memory, then their values; and AHEAD of the next chunk. Behind the last one,
 * any address does. */
NOINLINE void locate_pieces(const char **at, const Walk *w, int64_t first, int tiles, const int format) {
    const int pieces = tiles * w->heads;
    for (int t = 0; t < tiles; t++)
        for (int h = 0; h < w->heads; h++) {
            const Piece piece = locate(w, h, first / TILE + t, format);
            at[t * w->heads + h] = piece.keys, at[pieces + t * w->heads + h] = piece.values;
        }
    for (int i = 0; i < AHEAD; i++) {
        const int64_t key = first + CHUNK + i / w->heads * TILE;
        const int more = key < w->position + w->rows;
        at[2 * pieces + i] = more ? locate(w, i % w->heads, key / TILE, format).keys : at[pieces];
    }
}

/* Vectors are read two by two where there are two. Of bfloat16, 32 bits hold two numbers; a shift makes a
 * vector of the first ones, a mask one of the second ones, where each by itself would take a load that widens. */
#define TWO(vectors) ((vectors) > 1 ? 2 : 1)
INLINE void fetch_two(vec *to, const char *from, const int vectors, const int format) {
    for (int v = 0; v < TWO(vectors); v++)
        to[v] = format == BFLOAT16 && vectors > 1 ? half_of(from, v)
                                                  : fetch(from + v * LANES * size_of(format), format);
}

/* Where number j of so many vectors is then. */
INLINE int place(int j, const int vectors, const int format) {
    const int in_two = j % (2 * LANES);
    return format == BFLOAT16 && vectors > 1 ? j - in_two + in_two % 2 * LANES + in_two / 2 : j;
}

/* The scores of a piece's keys, which begin at at[0]; what begins at at[AHEAD] is asked for meanwhile.
 * stride: bytes from one dimension of the keys to the next. */
INLINE void score_piece(float (*scores)[TILE], float (*query)[DIM], const char **at, int64_t stride,
                        const int max_rows, const int format) {
    enum { PARTS = 4 };
    const int parts = max_rows == 1 ? PARTS : 1; /* one row alone would wait for each sum: let it have four */
    vec sum[QUERIES][PARTS][VECS];
    for (int r = 0; r < max_rows; r++)
        for (int p = 0; p < parts; p++)
            for (int v = 0; v < VECS; v++) sum[r][p][v] = (vec){0};
    for (int d = 0; d < DIM; d += parts)
        for (int p = 0; p < parts; p++) {
            const char *keys = at[0] + (d + p) * stride;
            if (stride >= LINE || (d + p) % 2 == 0) __builtin_prefetch(at[AHEAD] + (d + p) * stride, 0, 2);
            for (int v = 0; v < VECS; v += TWO(VECS)) {
                vec some[2];
                fetch_two(some, keys + v * LANES * size_of(format), VECS, format);
                for (int i = 0; i < TWO(VECS); i++)
                    for (int r = 0; r < max_rows; r++) sum[r][p][v + i] += query[r][d + p] * some[i];
            }
        }
    for (int r = 0; r < max_rows; r++)
        for (int v = 0; v < VECS; v++) {
            for (int p = 1; p < parts; p++) sum[r][0][v] += sum[r][p][v];
            store(&scores[r][v * LANES], sum[r][0][v]);
        }
}

/* For a pair whose query sees the first `visible` keys of the chunk: their scores become weights, and the
 * past is brought to their scale. */
NOINLINE void softmax_step(State *s, int pair, int tiles, int visible, const int format) {
    for (int j = visible; j < tiles * TILE; j++)
        s->weights[j / TILE][pair][place(j % TILE, VECS, format)] = -INFINITY;
    vec best = load(s->weights[0][pair]);
    for (int t = 0; t < tiles; t++)
        for (int j = 0; j < TILE; j += LANES) best = larger(load(&s->weights[t][pair][j]), best);
    const float highest = largest_of(best);
    if (highest > s->maximum[pair]) {
        const vec shrink = exponential(splat(s->maximum[pair] - highest));
        s->sum[pair] *= shrink, s->maximum[pair] = highest;
        for (int v = 0; v < DIM / LANES; v++) s->weighted[pair][v] *= shrink;
    }
    for (int t = 0; t < tiles; t++)
        for (int j = 0; j < TILE; j += LANES) {
            const vec score = load(&s->weights[t][pair][j]), e = exponential(score - s->maximum[pair]);
            const vec weight = (vec)((ivec)e & (score > -INFINITY)); /* nothing at all for a hidden key */
            store(&s->weights[t][pair][j], weight);
            s->sum[pair] += weight;
        }
}

/* The first `count` values of a piece, each times its weight; at: see score_piece. */
INLINE void add_values(vec (*weighted)[DIM / LANES], float (*weights)[TILE], const char **at, int count,
                       const int max_rows, const int format) {
    vec sum[QUERIES][DIM / LANES]; /* in registers meanwhile */
    memcpy(sum, weighted, sizeof(sum[0]) * (size_t)max_rows);
    for (int j = 0; j < count; j++)
        for (int v = 0; v < DIM / LANES; v += 2) {
            const int64_t row = j * DIM * size_of(format), size = LANES * size_of(format), begin = v * size;
            vec some[2];
            fetch_two(some, at[0] + row + begin, DIM / LANES, format);
            for (int64_t line = round_up(begin, LINE); line < begin + 2 * size; line += LINE)
                __builtin_prefetch(at[AHEAD] + row + line, 0, 2);
            for (int i = 0; i < 2; i++)
                for (int r = 0; r < max_rows; r++)
                    sum[r][v + i] += weights[r][place(j, VECS, format)] * some[i];
        }
    memcpy(weighted, sum, sizeof(sum[0]) * (size_t)max_rows);
}

NOINLINE void write_out(const State *s, const Walk *w, const int max_rows, const int format) {
    for (int h = 0; h < w->heads; h++)
        for (int r = 0; r < w->rows; r++) {
            const int pair = h * max_rows + r;
            const float scale = 1 / sum_of(s->sum[pair]), *weighted = (const float *)s->weighted[pair];
            float value[DIM];
            for (int d = 0; d < DIM; d++) value[d] = weighted[place(d, DIM / LANES, format)];
            for (int d = 0; d < DIM; d += LANES)
                write_row(w->out, w->row + r, (w->head + h) * DIM + d, load(value + d) * scale);
        }
}

INLINE int at_most(int64_t n, int most) { return n < most ? (int)n : most; }

INLINE void attend(const Walk *w, const int max_rows, const int format) {
    const int64_t num_keys = w->position + w->rows, stride = w->cache->block_size * size_of(format);
    State s;
    load_queries(&s, w, max_rows);
    for (int64_t first = 0; first < num_keys; first += CHUNK) {
        const int count = at_most(num_keys - first, CHUNK), tiles = (count + TILE - 1) / TILE;
        const char *pieces[2 * CHUNK_TILES * HEADS + AHEAD], **at = pieces;
        locate_pieces(pieces, w, first, tiles, format);
        for (int t = 0; t < tiles; t++)
            for (int h = 0; h < w->heads; h++, at++)
                score_piece(&s.weights[t][h * max_rows], &s.query[h * max_rows], at, stride, max_rows,
                            format);
        for (int h = 0; h < w->heads; h++)
            for (int r = 0; r < max_rows; r++) {
                const int64_t visible = w->position + r + 1 - first; /* a query sees the keys up to its own */
                softmax_step(&s, h * max_rows + r, tiles, visible < 0 ? 0 : at_most(visible, count), format);
            }
        for (int t = 0; t < tiles; t++)
            for (int h = 0; h < w->heads; h++, at++)
                add_values(&s.weighted[h * max_rows], &s.weights[t][h * max_rows], at,
                           at_most(count - t * TILE, TILE), max_rows, format);
    }
    write_out(&s, w, max_rows, format);
}

/* Some heads of a request's queries: of all of them (first < 0), or of up to QUERIES from `first` on. */
struct Item { int64_t request, first, head, end; };

/* An item that is a decode, or few queries. */
static void decode_attention(const Rows *out, const Rows *query, const Cache *c, const Step *step,
                             const Item *item) {
    const int64_t left = step->query_start_loc[item->request + 1] - item->first;
    Walk w = {.cache = c,
              .table = step->block_tables + item->request * step->table_width,
              .query = query,
              .out = out,
              .row = item->first,
              .position = step->seq_lens[item->request] - left,
              .rows = at_most(left, QUERIES)};
    if (c->head_dim != DIM || c->block_size % TILE != 0) {
        for (int64_t head = item->head; head < item->end; head++)
            for (int r = 0; r < w.rows; r++) attend_plainly(&w, head, r);
        return;
    }
    const int together = w.rows == 1 ? HEADS : 1;
    for (w.head = item->head; w.head < item->end; w.head += together) {
        w.heads = at_most(item->end - w.head, together);
        switch (w.rows == 1 ? c->format : c->format + 10) {
            case FLOAT32: attend(&w, 1, FLOAT32); break;
            case BFLOAT16: attend(&w, 1, BFLOAT16); break;
            case FLOAT16: attend(&w, 1, FLOAT16); break;
            case 10 + FLOAT32: attend(&w, QUERIES, FLOAT32); break;
            case 10 + BFLOAT16: attend(&w, QUERIES, BFLOAT16); break;
            case 10 + FLOAT16: attend(&w, QUERIES, FLOAT16); break;
        }
    }
}

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
    const int64_t share = decodes * n_head / (4 * threads);
    const int64_t heads = share < 1 ? 1 : share < n_head ? share : n_head;
    for (int64_t i = 0; i < step->num_seqs; i++) {
        if (is_prompt(step, i, kind)) continue;
        for (int64_t q = step->query_start_loc[i]; q < step->query_start_loc[i + 1]; q += QUERIES)
            for (int64_t head = 0; head < n_head; head += heads)
                items[count++] = (Item){i, q, head, head + heads < n_head ? head + heads : n_head};
    }
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

void paged_attention(const Team *team, const Rows *out, const Rows *query, const Cache *cache,
                     const Step *step, const Plan *plan, int kind) {
    if (kind >= 0) begin_products(kind);
    IN_ORDER(n, plan->count, team) {
        const Item *item = &plan->items[n];
        char *memory = plan->memory + plan->bytes * team->me;
        if (item->first < 0)
            prefill_attention(out, query, cache, step, item->request, item->head, kind, memory);
        else decode_attention(out, query, cache, step, item);
    }
    if (kind >= 0) end_products(kind);
    meet(team);
}

/* One head of one token. */
INLINE void write_one(const Cache *c, const char *k, const char *v, char *keys, char *values,
                      const int64_t size) {
    const int64_t step = c->block_size * size;
    for (int64_t d = 0; d < c->head_dim; d++) {
        __builtin_prefetch(keys + (d + c->head_dim) * step, 1); /* the next head's */
        memcpy(keys + d * step, k + d * size, (size_t)size);
    }
    memcpy(values, v, (size_t)(c->head_dim * size));
}

/* A key is spread over its block: each of its numbers goes to another line of the CPU's cache. So the tokens
 * of a block are written together, head by head, while these lines are there. */
void write_kv(const Team *team, const Cache *c, const Rows *qkv, const Step *step) {
    const int64_t size = size_of((int)c->format), width = c->n_head * c->head_dim * size;
    const int64_t *slots = step->slot_mapping, n = step->num_tokens;
    EACH(first, n, team) {
        const int64_t block = slots[first] / c->block_size;
        if (first > 0 && slots[first - 1] / c->block_size == block) continue; /* not its block's first */
        int64_t end = first + 1;
        while (end < n && slots[end] / c->block_size == block) end++;
        for (int64_t head = 0; head < c->n_head; head++)
            for (int64_t t = first; t < end; t++) {
                const int64_t start = (block * c->n_head + head) * c->head_dim * c->block_size;
                const int64_t row = slots[t] % c->block_size;
                const char *k = qkv->data + t * qkv->stride + width + head * c->head_dim * size;
                char *keys = c->keys + (start + row) * size;
                char *values = c->values + (start + row * c->head_dim) * size;
                if (size == 4) write_one(c, k, k + width, keys, values, 4);
                else write_one(c, k, k + width, keys, values, 2);
            }
    }
    meet(team);
}
