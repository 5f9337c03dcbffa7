/* The small layers: embedding and layer norm. The layer norm writes its result in the format of the next product. */
#include <math.h>
#include "kernels.h"

void embed(const Team *team, float *x, const void *wte, const void *wpe, int64_t format,
           const int64_t *token_ids, const int64_t *positions, int64_t num_tokens, int64_t n_embd) {
    const int numbers = (int)format;
    const int64_t size = size_of(numbers), row = n_embd * size;
    PARALLEL_FOR(t, num_tokens, team) {
        const char *token = (const char *)wte + token_ids[t] * row;
        const char *position = (const char *)wpe + positions[t] * row;
        float *to = x + t * n_embd;
        int64_t c = 0;
        for (; c + LANES <= n_embd; c += LANES)
            store(to + c, fetch(token + c * size, numbers) + fetch(position + c * size, numbers));
        for (; c < n_embd; c++) to[c] = fetch_one(token, c, numbers) + fetch_one(position, c, numbers);
    }
    barrier(team);
}

void layer_norm(const Team *team, const Rows *to, const float *x, const int64_t *which, int64_t num_rows,
                int64_t n_embd, const float *weight, const float *bias, float epsilon) {
    PARALLEL_FOR(t, num_rows, team) {
        const float *from = x + (which ? which[t] : t) * n_embd;
        vec sums = {0}, squares = {0};
        for (int64_t c = 0; c < n_embd; c += LANES) sums += load_some(from + c, n_embd - c);
        const float mean = sum_of(sums) / (float)n_embd;
        int64_t c = 0;
        for (; c + LANES <= n_embd; c += LANES) {
            const vec centered = load(from + c) - mean;
            squares += centered * centered;
        }
        float rest = 0;
        for (; c < n_embd; c++) rest += (from[c] - mean) * (from[c] - mean);
        const float scale = 1 / sqrtf((sum_of(squares) + rest) / (float)n_embd + epsilon);
        for (int64_t c = 0; c < n_embd; c += LANES) {
            const int64_t left = n_embd - c;
            const vec normed = (load_some(from + c, left) - mean) * scale;
            write_some(to, t, c, normed * load_some(weight + c, left) + load_some(bias + c, left), left);
        }
    }
    barrier(team);
}
