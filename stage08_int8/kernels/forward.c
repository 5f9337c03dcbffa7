/* A whole step in one call: all layers, from token ids to logits. If Python called the kernels one by one, eight in
 * each layer, they would wait for Python a hundred times a step.
 *
 * All memory is Python's (fast_model.py), except what a step allocates for its attention. */
#include <stdlib.h>
#include "kernels.h"

typedef struct {
    const float *ln_1_weight, *ln_1_bias, *ln_2_weight, *ln_2_bias;
    Linear c_attn, attn_c_proj, c_fc, mlp_c_proj;
} Layer;

typedef struct {
    int64_t n_layer, n_embd, format; /* of the embeddings */
    double epsilon;
    const void *wte, *wpe; /* wte is NULL with int8: it is read from the head's weights */
    const Layer *layers;
    const float *ln_f_weight, *ln_f_bias;
    Linear head;
} Model;

/* Memory for one step. x: [num_tokens, n_embd], the residual stream. */
typedef struct {
    float *x;
    Rows normed, qkv, attended, inner; /* the results of the layer norms, c_attn, attention and GELU */
    Rows integers; /* one of these, quantized for an int8 product */
} Workspace;

/* A step in the last layer, after its keys and values are written. Only the tokens whose logits are needed are left, in
 * most requests the last one. starts: memory for num_seqs + 1 numbers, which become query_start_loc. */
static Step step_of_last(const Step *step, int64_t *starts) {
    int64_t count = 0;
    for (int64_t i = 0; i < step->num_seqs; i++) {
        starts[i] = count;
        while (count < step->num_logits && step->logits_indices[count] < step->query_start_loc[i + 1]) count++;
    }
    starts[step->num_seqs] = count;
    Step kept = *step;
    kept.num_tokens = count, kept.query_start_loc = starts, kept.logits_indices = NULL;
    return kept;
}

/* Move the rows of these tokens to the front, in `x` and in the queries. step->logits_indices ascends, so no row is
 * overwritten before it has moved. */
static void keep_last(const Team *team, const Workspace *w, int64_t n_embd, const Step *step) {
    const size_t query = (size_t)(n_embd * size_of((int)w->qkv.format));
    for (int64_t t = 0; t < step->num_logits && team->rank == 0; t++) {
        if (step->logits_indices[t] == t) continue;
        memcpy(w->x + t * n_embd, w->x + step->logits_indices[t] * n_embd, sizeof(float) * (size_t)n_embd);
        memcpy(w->qkv.data + t * w->qkv.stride, w->qkv.data + step->logits_indices[t] * w->qkv.stride, query);
    }
    barrier(team);
}

/* A step, what is left of it in the last layer, and the plans for the attention of both. */
typedef struct { Step whole, last; Plan plans[2]; } Work;

/* A linear layer; with int8, its rows are quantized first. */
static void multiply(const Team *team, const Workspace *w, const Linear *layer, const Rows *rows, int64_t n,
                     int epilogue, float *out, const Rows *to, const Linear *next) {
    if (layer->scales) quantize(team, &w->integers, rows, n, layer->in);
    linear(team, layer, layer->scales ? &w->integers : rows, n, epilogue, out, to, next);
}

/* kind: of the attention's products; each linear layer has its own. */
static void layers(const Team *team, const Model *m, const Workspace *w, const Cache *caches,
                   const Work *work, float *logits, int kind) {
    const int64_t width = m->n_embd;
    const float epsilon = (float)m->epsilon;
    const Step *step = &work->whole;
    int64_t n = step->num_tokens;
    if (m->wte) embed(team, w->x, m->wte, m->wpe, m->format, step->token_ids, step->positions, n, width);
    else embed_int8(team, w->x, &m->head, m->wpe, m->format, step->token_ids, step->positions, n);
    for (int64_t i = 0; i < m->n_layer; i++) {
        const Layer *layer = &m->layers[i];
        layer_norm(team, &w->normed, w->x, NULL, n, width, layer->ln_1_weight, layer->ln_1_bias, epsilon);
        multiply(team, w, &layer->c_attn, &w->normed, n, TO_ROWS, NULL, &w->qkv, &layer->attn_c_proj);
        write_kv(team, &caches[i], &w->qkv, step);
        if (i + 1 == m->n_layer && work->last.num_tokens < n) {
            keep_last(team, w, width, step);
            step = &work->last, n = step->num_tokens;
        }
        const Plan *plan = &work->plans[step == &work->last ? 1 : 0];
        paged_attention(team, &w->attended, &w->qkv, &caches[i], step, plan, kind);
        multiply(team, w, &layer->attn_c_proj, &w->attended, n, ADD, w->x, NULL, &layer->c_fc);
        layer_norm(team, &w->normed, w->x, NULL, n, width, layer->ln_2_weight, layer->ln_2_bias, epsilon);
        multiply(team, w, &layer->c_fc, &w->normed, n, GELU, NULL, &w->inner, &layer->mlp_c_proj);
        const Linear *next = i + 1 < m->n_layer ? &layer[1].c_attn : &m->head;
        multiply(team, w, &layer->mlp_c_proj, &w->inner, n, ADD, w->x, NULL, next);
    }
    n = step->num_logits;
    layer_norm(team, &w->normed, w->x, step->logits_indices, n, width, m->ln_f_weight, m->ln_f_bias, epsilon);
    multiply(team, w, &m->head, &w->normed, n, STORE, logits, NULL, NULL);
}

/* Returns 0, or -1 if there is no memory; then nothing has been written. */
int forward(const Model *m, const Workspace *w, const Cache *caches, const Step *step, float *logits,
            int kind, int prompts, int threads) {
    int64_t *starts = malloc(sizeof(int64_t) * (size_t)(step->num_seqs + 1));
    Work work = {.whole = *step, .last = *step};
    const int fewer = step->num_logits < step->num_tokens;
    if (starts && fewer) work.last = step_of_last(step, starts);
    const int failed = !starts || plan_attention(&work.plans[0], step, caches, kind, prompts, threads) ||
                       (fewer && plan_attention(&work.plans[1], &work.last, caches, kind, prompts, threads));
    if (!failed) PARALLEL(threads, layers(team, m, w, caches, &work, logits, kind););
    for (int i = 0; i < 2; i++) free_plan(&work.plans[i]);
    free(starts);
    return failed ? -1 : 0;
}
