/* A whole step in one call: all layers, from token ids to logits. Called one by one from Python, the kernels of a step
 * (eight in each layer) would wait for Python some hundred times. */
#include <stdlib.h>
#include "kernels.h"

typedef struct {
    const float *ln_1_weight, *ln_1_bias, *ln_2_weight, *ln_2_bias;
    Linear c_attn, attn_c_proj, c_fc, mlp_c_proj;
} Layer;

typedef struct {
    int64_t n_layer, n_embd, format; /* of the embeddings */
    double epsilon;
    const void *wte, *wpe;
    const Layer *layers;
    const float *ln_f_weight, *ln_f_bias;
    Linear head;
} Model;

/* Memory for one step. x: [num_tokens, n_embd], the residual stream; scratch: what linear_in_passes needs. */
typedef struct {
    float *x, *scratch;
    Rows normed, qkv, attended, inner; /* what the layer norms, c_attn, attention and GELU give */
} Workspace;

/* What is left of a step in the last layer, once its keys and values are written: nobody asks for what comes behind tokens
 * that are not the last ones of their requests. The rows of those that are, in `x` and of the queries, move to the front;
 * step->last ascends, so nothing is overwritten that is still to be moved.
 *
 * kept: becomes the step that is left; each request has one query, its last, or none.
 * starts: memory for its num_seqs + 1 query_start_loc. */
void keep_last(const Workspace *w, int64_t n_embd, const Step *step, int64_t *starts, Step *kept) {
    const size_t query = (size_t)(n_embd * size_of((int)w->qkv.format));
    for (int64_t t = 0; t < step->num_last; t++) {
        if (step->last[t] == t) continue;
        memcpy(w->x + t * n_embd, w->x + step->last[t] * n_embd, sizeof(float) * (size_t)n_embd);
        memcpy(w->qkv.data + t * w->qkv.stride, w->qkv.data + step->last[t] * w->qkv.stride, query);
    }
    int64_t count = 0;
    for (int64_t i = 0; i < step->num_seqs; i++) {
        starts[i] = count;
        count += count < step->num_last && step->last[count] + 1 == step->query_start_loc[i + 1];
    }
    starts[step->num_seqs] = count;
    *kept = *step;
    kept->num_tokens = count, kept->query_start_loc = starts, kept->last = NULL;
}

void forward(const Model *m, const Workspace *w, const Cache *caches, const Step *step, float *logits, int attention_kind,
             int fused, int last_only, int threads) {
    const int64_t width = m->n_embd;
    int64_t n = step->num_tokens, *starts = malloc(sizeof(int64_t) * (size_t)(step->num_seqs + 1));
    Step kept;
    const float epsilon = (float)m->epsilon;
#define LINEAR(layer, rows, epilogue, out, to, next) \
    if (fused) linear(layer, rows, n, epilogue, out, to, next, threads); \
    else linear_in_passes(layer, rows, n, epilogue, out, to, next, w->scratch, threads);
    embed(w->x, m->wte, m->wpe, m->format, step->token_ids, step->positions, n, width, threads);
    for (int64_t i = 0; i < m->n_layer; i++) {
        const Layer *layer = &m->layers[i];
        layer_norm(&w->normed, w->x, NULL, n, width, layer->ln_1_weight, layer->ln_1_bias, epsilon, threads);
        LINEAR(&layer->c_attn, &w->normed, TO_ROWS, NULL, &w->qkv, &layer->attn_c_proj)
        write_kv(&caches[i], &w->qkv, step, threads);
        if (last_only && i + 1 == m->n_layer && step->num_last < n) {
            keep_last(w, width, step, starts, &kept);
            step = &kept, n = kept.num_tokens;
        }
        paged_attention(&w->attended, &w->qkv, &caches[i], step, attention_kind, threads);
        LINEAR(&layer->attn_c_proj, &w->attended, ADD, w->x, NULL, &layer->c_fc)
        layer_norm(&w->normed, w->x, NULL, n, width, layer->ln_2_weight, layer->ln_2_bias, epsilon, threads);
        LINEAR(&layer->c_fc, &w->normed, GELU, NULL, &w->inner, &layer->mlp_c_proj)
        LINEAR(&layer->mlp_c_proj, &w->inner, ADD, w->x, NULL, i + 1 < m->n_layer ? &layer[1].c_attn : &m->head)
    }
    layer_norm(&w->normed, w->x, step->last, step->num_last, width, m->ln_f_weight, m->ln_f_bias, epsilon, threads);
    linear(&m->head, &w->normed, step->num_last, STORE, logits, NULL, NULL, threads);
    free(starts);
}
