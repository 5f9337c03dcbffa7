/* The kernels and their arguments. forward.c calls them in turn; c_kernel.py can call each one alone. */
#ifndef KERNELS_H
#define KERNELS_H
#include "product.h"
#include "team.h"

/* A linear layer y = x W + b; its weights are packed for one kind of product. */
typedef struct {
    const char *panels; /* [out / 32] panels, the last one padded with zeros */
    const float *bias;  /* padded too, or NULL */
    int64_t in, out, kind;
} Linear;

/* What to do with y: out = y; out += y (a residual); to = y, as rows for the next kernel; to = GELU(y). */
enum { STORE, ADD, TO_ROWS, GELU };

/* Every thread of a team calls these; they return when the last thread is done. */

/* weight [out, in] -> the panels of a kind. out_stride, in_stride: numbers from one output, or input, to the next. */
void pack(const Team *team, char *panels, const char *weight, int64_t format, int64_t out_stride,
          int64_t in_stride, int64_t out, int64_t in, int kind);
/* x: [num_rows, in], in rows_format(w->kind). out: [num_rows, out]. next: the linear layer after this one, or NULL. */
void linear(const Team *team, const Linear *w, const Rows *x, int64_t num_rows, int epilogue, float *out,
            const Rows *to, const Linear *next);

/* x[t] = wte[token_ids[t]] + wpe[positions[t]]. format: of wte and wpe. */
void embed(const Team *team, float *x, const void *wte, const void *wpe, int64_t format,
           const int64_t *token_ids, const int64_t *positions, int64_t num_tokens, int64_t n_embd);
/* The layer norm of row which[t] of x, or of row t without `which`. */
void layer_norm(const Team *team, const Rows *to, const float *x, const int64_t *which, int64_t num_rows,
                int64_t n_embd, const float *weight, const float *bias, float epsilon);

/* A row of logits, how to sample from it (sampling_params.py), and what comes out. */
typedef struct {
    const float *logits, *raw; /* [vocab_size], after the request's logits processors and before */
    const int64_t *used;       /* [num_used], the tokens of prompt and output; the last num_output are the output's */
    int64_t num_used, num_output, top_k;
    double temperature, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty;
    uint64_t seed, position; /* of the draw; see support/philox.py */
    int64_t num_logprobs;           /* of the likeliest tokens; -1: no log-probabilities at all */
    int64_t token_id;               /* -1: the largest logit is not finite, or one is NaN */
    int64_t *top_ids, *ranks;       /* [1 + num_logprobs], of the chosen token and of the likeliest ones */
    double *logprobs;
} SampledRow;

/* memory: sampler_bytes for each thread. */
void sample_rows(const Team *team, SampledRow *rows, int64_t num_rows, int64_t vocab_size, char *memory);
/* The log-probabilities of given tokens, and of the k likeliest ones. indices: [2, num_rows], rows of the logits, and a
 * token for each. ids, logprobs, ranks: [num_rows, 1 + k]. */
void score_rows(const Team *team, const float *logits, const int64_t *indices, int64_t num_rows, int64_t vocab_size,
                int64_t k, int64_t *ids, double *logprobs, int64_t *ranks, char *memory);
int64_t sampler_bytes(int64_t vocab_size);

/* A layer's keys and values. */
typedef struct {
    char *keys;   /* [num_blocks, n_head, head_dim, block_size]: a block's keys, transposed */
    char *values; /* [num_blocks, n_head, block_size, head_dim] */
    int64_t n_head, head_dim, block_size, format;
} Cache;

/* The tokens of a step, and where their keys and values are; see batch.py and attention.py. */
typedef struct {
    const int64_t *token_ids, *positions, *slot_mapping, *block_tables, *query_start_loc, *seq_lens, *logits_indices;
    int64_t num_tokens, num_seqs, table_width, num_logits;
} Step;

/* qkv: [num_tokens, 3 * n_embd], queries, keys and values, in the cache's format. */
void write_kv(const Team *team, const Cache *cache, const Rows *qkv, const Step *step);

/* How a step's attention is divided into items, the same in all layers, and memory for each thread. */
typedef struct Item Item;
typedef struct {
    Item *items;
    int64_t count, bytes;
    char *memory; /* `bytes` for each thread */
} Plan;

/* kind: of the attention's products. prompts: use products for a request with many queries. Returns 0, or -1 if there
 * is no memory; call free_plan in either case. */
int plan_attention(Plan *plan, const Step *step, const Cache *cache, int kind, int prompts, int threads);
void free_plan(Plan *plan);
/* query: [num_tokens, n_embd], or wider rows that begin with the queries. */
void paged_attention(const Team *team, const Rows *out, const Rows *query, const Cache *cache,
                     const Step *step, const Plan *plan, int kind);

/* All queries of request i, for one head. memory: prefill_attention_bytes. */
void prefill_attention(const Rows *out, const Rows *query, const Cache *cache, const Step *step, int64_t i,
                       int64_t head, int kind, char *memory);
int64_t prefill_attention_bytes(int64_t num_keys, int64_t head_dim);

/* A row of scores -> row `row` of `weights`, which may be the same memory: e^(score - maximum) of the first `visible`
 * ones, then zeros up to `padded`, a multiple of PANEL. Returns the sum. */
float softmax(float *scores, int64_t visible, int64_t padded, const Rows *weights, int64_t row);

/* Bytes of a row of `count` floats, with 64 to spare: see rows() in fast_model.py. */
INLINE int64_t row_bytes(int64_t count) { return 4 * (round_up(count, PANEL) + 16); }
#endif
