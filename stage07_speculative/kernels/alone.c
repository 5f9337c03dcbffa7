/* Each kernel alone, for calls from Python: packing, sampling, attention if torch does the rest, tests, benchmarks. */
#include "kernels.h"

void pack_alone(char *panels, const char *weight, int64_t format, int64_t out_stride, int64_t in_stride,
                int64_t out, int64_t in, int kind, int threads) {
    PARALLEL(threads, pack(team, panels, weight, format, out_stride, in_stride, out, in, kind););
}

void linear_alone(const Linear *w, const Rows *x, int64_t num_rows, int epilogue, float *out, const Rows *to,
                  const Linear *next, int threads) {
    PARALLEL(threads, linear(team, w, x, num_rows, epilogue, out, to, next););
}

void embed_alone(float *x, const void *wte, const void *wpe, int64_t format, const int64_t *token_ids,
                 const int64_t *positions, int64_t num_tokens, int64_t n_embd, int threads) {
    PARALLEL(threads, embed(team, x, wte, wpe, format, token_ids, positions, num_tokens, n_embd););
}

void layer_norm_alone(const Rows *to, const float *x, const int64_t *which, int64_t num_rows, int64_t n_embd,
                      const float *weight, const float *bias, float epsilon, int threads) {
    PARALLEL(threads, layer_norm(team, to, x, which, num_rows, n_embd, weight, bias, epsilon););
}

void sample_rows_alone(SampledRow *rows, int64_t num_rows, int64_t vocab_size, char *memory, int threads) {
    PARALLEL(threads, sample_rows(team, rows, num_rows, vocab_size, memory););
}

void score_rows_alone(const float *logits, const int64_t *indices, int64_t num_rows, int64_t vocab_size, int64_t k,
                      int64_t *ids, double *logprobs, int64_t *ranks, char *memory, int threads) {
    PARALLEL(threads, score_rows(team, logits, indices, num_rows, vocab_size, k, ids, logprobs, ranks, memory););
}

void write_kv_alone(const Cache *cache, const Rows *qkv, const Step *step, int threads) {
    PARALLEL(threads, write_kv(team, cache, qkv, step););
}

int paged_attention_alone(const Rows *out, const Rows *query, const Cache *cache, const Step *step, int kind,
                          int prompts, int threads) {
    Plan plan;
    const int failed = plan_attention(&plan, step, cache, kind, prompts, threads);
    if (!failed) PARALLEL(threads, paged_attention(team, out, query, cache, step, &plan, kind););
    free_plan(&plan);
    return failed;
}
