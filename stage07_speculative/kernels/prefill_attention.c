/* Attention for many queries of a request: two matrix products with a softmax between them, by the loops of product.c.
 *
 * First, one head's keys and values are packed into panels, from wherever the request's blocks are. That pays because
 * each BLOCK of 32 queries uses every panel. All scores of these queries are kept (32 x 1,024 of them fill at most half
 * of a level 2 cache), so the softmax is simple: maximum, exponentials, sum; the division comes last.
 *
 * One head's numbers are far apart: in blocks anywhere, and in rows of all heads. The CPU's prefetcher can't follow, so
 * the kernel prefetches: the next block of keys and of values while it packs one; the next queries, and the memory for
 * the results, during the softmax, when memory is idle.
 */
#include <math.h>
#include "kernels.h"

#define VECS (PANEL / LANES)

/* The indices of a key's and a value's first number in the cache. A key's numbers are block_size apart. */
INLINE int64_t key_at(const Cache *c, const int64_t *table, int64_t head, int64_t key) {
    const int64_t block = table[key / c->block_size], row = key % c->block_size;
    return (block * c->n_head + head) * c->head_dim * c->block_size + row;
}

INLINE int64_t value_at(const Cache *c, const int64_t *table, int64_t head, int64_t key) {
    const int64_t block = table[key / c->block_size], row = key % c->block_size;
    return ((block * c->n_head + head) * c->block_size + row) * c->head_dim;
}

/* A key of the next block; the last key if there is none. */
INLINE int64_t of_next_block(const Cache *c, int64_t key, int64_t num_keys) {
    return key + c->block_size < num_keys ? key + c->block_size : num_keys - 1;
}

/* Write LANES columns of inputs i and i + 1 to a panel. */
INLINE void pack_two(char *panel, int format, int64_t i, int64_t column, vec first, vec second) {
    if (format == FLOAT32) {
        store((float *)panel + i * PANEL + column, first);
        store((float *)panel + (i + 1) * PANEL + column, second);
    } else { /* both are bfloat16 already: their lower halves are zero */
        *(ivec *)(panel + (i / 2 * PANEL + column) * 4) = ((ivec)first >> 16 & 0xffff) | (ivec)second;
    }
}

/* Keys -> panels [head_dim, 32 keys]: a key is a column. Padded with zeros. */
INLINE void pack_keys(char *panels, int kind, const Cache *c, const int64_t *table, int64_t head,
                      int64_t num_keys, const int format) {
    const int64_t size = size_of(format);
    for (int64_t key = 0; key < round_up(num_keys, PANEL); key += LANES) {
        char *panel = panels + key / PANEL * panel_bytes(kind, c->head_dim);
        const int whole = c->block_size % LANES == 0 && key + LANES <= num_keys;
        const int64_t start = whole ? key_at(c, table, head, key) : 0;
        const char *prefetch = c->keys + key_at(c, table, head, of_next_block(c, key, num_keys)) * size;
        for (int64_t d = 0; d < round_up(c->head_dim, PAD_INPUTS); d += 2) {
            vec pair[2] = {{0}, {0}};
            for (int i = 0; i < 2 && d + i < c->head_dim; i++) {
                const int64_t offset = (d + i) * c->block_size;
                __builtin_prefetch(prefetch + offset * size);
                if (whole) pair[i] = fetch(c->keys + (start + offset) * size, format);
                else
                    for (int64_t j = 0; j < LANES && key + j < num_keys; j++)
                        pair[i][j] = fetch_one(c->keys, key_at(c, table, head, key + j) + offset, format);
            }
            pack_two(panel, panel_format(kind), d, key % PANEL, pair[0], pair[1]);
        }
    }
}

/* Values -> panels [keys, 32 dimensions]: a value is a row. Padded with zeros. */
INLINE void pack_values(char *panels, int kind, const Cache *c, const int64_t *table, int64_t head,
                        int64_t num_keys, const int format) {
    const int64_t size = size_of(format);
    for (int64_t key = 0; key < round_up(num_keys, PAD_INPUTS); key += 2) {
        int64_t start[2];
        for (int i = 0; i < 2; i++) start[i] = key + i < num_keys ? value_at(c, table, head, key + i) : -1;
        const char *prefetch = c->values + value_at(c, table, head, of_next_block(c, key, num_keys)) * size;
        for (int64_t i = 0; i < 2 * c->head_dim * size; i += 64) __builtin_prefetch(prefetch + i);
        for (int64_t d = 0; d < round_up(c->head_dim, PANEL); d += LANES) {
            char *panel = panels + d / PANEL * panel_bytes(kind, num_keys);
            vec pair[2] = {{0}, {0}};
            for (int i = 0; i < 2 && start[i] >= 0; i++)
                if (d + LANES <= c->head_dim) pair[i] = fetch(c->values + (start[i] + d) * size, format);
                else
                    for (int64_t j = 0; j < LANES && d + j < c->head_dim; j++)
                        pair[i][j] = fetch_one(c->values, start[i] + d + j, format);
            pack_two(panel, panel_format(kind), key, d % PANEL, pair[0], pair[1]);
        }
    }
}

/* The first `count` rows times a panel with k inputs. stride: floats from one row of `out` to the next. */
static void multiply(int kind, const Rows *rows, int64_t count, const char *panel, int64_t k, float *out,
                     int64_t stride) {
    const int64_t block = product_block(kind, count);
    for (int64_t r = 0; r < count; r += block)
        product(kind, rows, r, (int)(count - r < block ? count - r : block), panel, 0, k, out + r * stride,
                stride, panel, 0);
}

/* Compiled once, for decodes too: inlined in two places, it might give different bits. */
__attribute__((noinline)) float softmax(float *scores, int64_t visible, int64_t padded, const Rows *weights,
                                        int64_t row) {
    const int64_t whole = visible / LANES * LANES;
    for (int64_t j = visible; j < padded; j++) scores[j] = -INFINITY;
    vec largest[VECS], sum = {0}; /* several, because each step of one maximum would wait for the step before it */
    for (int v = 0; v < VECS; v++) largest[v] = load(scores + v * LANES);
    for (int64_t j = PANEL; j < padded; j += PANEL)
        for (int v = 0; v < VECS; v++) largest[v] = larger(load(scores + j + v * LANES), largest[v]);
    for (int v = 1; v < VECS; v++) largest[0] = larger(largest[v], largest[0]);
    const float maximum = largest_of(largest[0]);
    for (int64_t j = 0; j < whole; j += LANES) {
        const vec e = exponential(load(scores + j) - maximum);
        sum += e;
        write_row(weights, row, j, e);
    }
    for (int64_t j = whole; j < padded; j += LANES) {
        const vec score = load(scores + j), any = exponential(score - maximum);
        const vec e = (vec)((ivec)any & (score != -INFINITY));
        sum += e;
        write_row(weights, row, j, e);
    }
    return sum_of(sum);
}

int64_t prefill_attention_bytes(int64_t num_keys, int64_t head_dim) {
    const int64_t panels = 4 * round_up(num_keys, PANEL) * round_up(head_dim, PANEL);
    return 2 * panels + 2 * BLOCK * (row_bytes(num_keys) + row_bytes(head_dim));
}

void prefill_attention(const Rows *out, const Rows *query, const Cache *c, const Step *step, int64_t i,
                       int64_t head, int kind, char *memory) {
    const int64_t begin = step->query_start_loc[i], num_queries = step->query_start_loc[i + 1] - begin;
    const int64_t num_keys = step->seq_lens[i], position = num_keys - num_queries; /* of the first query */
    const int64_t *table = step->block_tables + i * step->table_width;
    const int64_t dim = round_up(c->head_dim, PANEL), panels = 4 * round_up(num_keys, PANEL) * dim;
    const int64_t key_panel = panel_bytes(kind, c->head_dim), value_panel = panel_bytes(kind, num_keys);
    /* memory: panels of keys, panels of values, then BLOCK rows each of scores and weights, `wide` bytes long, and of
     * queries and results, `narrow` bytes long. */
    const int64_t wide = row_bytes(num_keys), narrow = row_bytes(dim), column = head * c->head_dim;
    char *key_panels = memory, *value_panels = memory + panels;
    float *scores = (float *)(memory + 2 * panels);
    const Rows weights = {(char *)scores + BLOCK * wide, wide, 0, rows_format(kind)};
    const Rows q = {weights.data + BLOCK * wide, narrow, 0, rows_format(kind)};
    float *y = (float *)(q.data + BLOCK * narrow);
    const float scale = 1 / sqrtf((float)c->head_dim);
#define PACK(format) \
    pack_keys(key_panels, kind, c, table, head, num_keys, format); \
    pack_values(value_panels, kind, c, table, head, num_keys, format);
    if (c->format == FLOAT32) { PACK(FLOAT32) }
    if (c->format == BFLOAT16) { PACK(BFLOAT16) }
    if (c->format == FLOAT16) { PACK(FLOAT16) }
    for (int64_t first = 0; first < num_queries; first += BLOCK) {
        const int64_t count = num_queries - first < BLOCK ? num_queries - first : BLOCK, row = begin + first;
        const int64_t padded = round_up(position + first + count, PANEL); /* keys that the last of these queries sees */
        float sums[BLOCK];
        for (int64_t r = 0; r < count; r++)
            for (int64_t d = 0; d < dim; d += LANES)
                write_row(&q, r, d, scale * read_row(query, row + r, column + d, c->head_dim - d));
        for (int64_t p = 0; p < padded / PANEL; p++)
            multiply(kind, &q, count, key_panels + p * key_panel, dim, scores + p * PANEL, wide / 4);
        for (int64_t r = 0; r < count; r++) {
            prefetch_row(out, row + r, column, c->head_dim, 1);
            if (first + BLOCK + r < num_queries) prefetch_row(query, row + BLOCK + r, column, c->head_dim, 0);
            sums[r] = softmax(scores + r * wide / 4, position + first + r + 1, padded, &weights, r);
        }
        for (int64_t p = 0; p < dim / PANEL; p++)
            multiply(kind, &weights, count, value_panels + p * value_panel, padded, y + p * PANEL,
                     narrow / 4);
        for (int64_t r = 0; r < count; r++)
            for (int64_t d = 0; d < c->head_dim; d += LANES) {
                /* 0 + a * b, also in decodes: a sum may be -0 there, and here 0 after the zeros of padding. */
                const vec result = multiply_add((vec){0}, load(y + r * narrow / 4 + d), splat(1 / sums[r]));
                write_some(out, row + r, column + d, result, c->head_dim - d);
            }
    }
}
