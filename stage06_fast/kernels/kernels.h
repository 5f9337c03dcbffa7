/* The kernels, and what they are given. forward.c calls them one after the other; c_kernel.py can call each by itself. */
#ifndef KERNELS_H
#define KERNELS_H
#include "product.h"

/* A linear layer y = x W + b; its weights are packed for one kind of product. */
typedef struct {
    const char *panels; /* [out / 32] panels, the last one filled up with zeros */
    const float *bias;  /* filled up likewise, or NULL */
    int64_t in, out, kind;
} Linear;

/* What becomes of y: out = y; out += y (a residual); and as rows for the next kernel, to = y; to = GELU(y). */
enum { STORE, ADD, TO_ROWS, GELU };

/* next: the layer that will be called next, or NULL. */
void linear(const Linear *w, const Rows *x, int64_t num_rows, int epilogue, float *out, const Rows *to, const Linear *next,
            int threads);
void linear_in_passes(const Linear *w, const Rows *x, int64_t num_rows, int epilogue, float *out, const Rows *to,
                      const Linear *next, float *scratch, int threads);

void embed(float *x, const void *wte, const void *wpe, int64_t format, const int64_t *token_ids, const int64_t *positions,
           int64_t num_tokens, int64_t n_embd, int threads);
/* The layer norm of row which[t] of x, or of row t without `which`. */
void layer_norm(const Rows *to, const float *x, const int64_t *which, int64_t num_rows, int64_t n_embd, const float *weight,
                const float *bias, float epsilon, int threads);
void argmax(int64_t *best, const float *logits, int64_t num_rows, int64_t vocab_size, int threads);

/* A layer's keys and values: [num_blocks, n_head, head_dim, block_size] and [num_blocks, n_head, block_size, head_dim]. */
typedef struct {
    char *keys, *values;
    int64_t n_head, head_dim, block_size, format;
} Cache;

/* Whose tokens a step has, and where their keys and values lie; see attention.py. */
typedef struct {
    const int64_t *token_ids, *positions, *slot_mapping, *block_tables, *query_start_loc, *seq_lens, *last;
    int64_t num_tokens, num_seqs, table_width, num_last;
} Step;

/* qkv: [num_tokens, 3 * n_embd], queries, keys and values, in the cache's format. */
void write_kv(const Cache *cache, const Rows *qkv, const Step *step, int threads);
/* query: [num_tokens, n_embd], or more; kind < 0: without products, every query by itself. */
void paged_attention(const Rows *out, const Rows *query, const Cache *cache, const Step *step, int kind, int threads);
void prefill_attention(const Rows *out, const Rows *query, const Cache *cache, const Step *step, int64_t i, int64_t head,
                       int kind);
#endif
