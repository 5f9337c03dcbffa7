/* Rounding to int8. Weights were rounded when the model was loaded (quantize.py), with a scale for each column.
 * Activations are rounded here, with a scale for each row:
 *
 *   sum over i of x[r][i] * w[i][c]  is nearly  x_scale[r] * w_scale[c] * sum over i of x_int[r][i] * w_int[i][c]
 *
 * The sum on the right is of integers, so it is exact, in any order and with any instruction. A row's integers and
 * scale depend on that row alone. So the logits have the same bits, whatever else is in the step.
 */
#include <math.h>
#include "kernels.h"

void quantize(const Team *team, const Rows *to, const Rows *from, int64_t num_rows, int64_t width) {
    PARALLEL_FOR(r, num_rows, team) {
        vec magnitude = {0};
        ivec nans = {0}, sums = {0};
        for (int64_t c = 0; c < width; c += LANES) {
            const vec x = read_row(from, r, c, width - c);
            magnitude = larger(magnitude, (vec)((ivec)x & 0x7fffffff));
            nans |= x != x;
        }
        const float largest = largest_of(magnitude), per_unit = largest > 0 ? 127 / largest : 0;
        int nan = 0;
        for (int i = 0; i < LANES; i++) nan |= nans[i];
        for (int64_t c = 0; c < round_up(width, 2 * PAD_INPUTS); c += LANES) { /* padded with zeros */
            /* Adding 1.5 * 2^23 rounds to an integer, which is then in the float's lowest bits. */
            const vec rounded = multiply_add(splat(12582912.0f), read_row(from, r, c, width - c), splat(per_unit));
            const ivec integers = (ivec)rounded - 0x4b400000;
            char *at = to->data + r * to->stride + c * size_of((int)to->format);
            sums += integers;
            if (to->format == INT8) *(bvec *)at = __builtin_convertvector(integers, bvec);
            else *(hvec *)at = __builtin_convertvector(integers, hvec);
        }
        int32_t sum = 0;
        for (int i = 0; i < LANES; i++) sum += sums[i];
        *scale_of(to, r) = (Scale){nan ? NAN : largest / 127, sum}; /* a NaN makes all of its row NaN */
    }
    barrier(team);
}

void embed_int8(const Team *team, float *x, const Linear *wte, const void *wpe, int64_t format,
                const int64_t *token_ids, const int64_t *positions, int64_t num_tokens) {
    const int kind = (int)wte->kind;
    const int64_t n_embd = wte->in, row = n_embd * size_of((int)format);
    PARALLEL_FOR(t, num_tokens, team) {
        const int64_t token = token_ids[t];
        const uint8_t *panel = (const uint8_t *)wte->panels + token / PANEL * panel_bytes(kind, n_embd);
        const char *position = (const char *)wpe + positions[t] * row;
        for (int64_t c = 0; c < n_embd; c++) {
            const int8_t weight = (int8_t)(panel[place(kind, c, token % PANEL)] - offset_of(kind));
            x[t * n_embd + c] = wte->scales[token] * (float)weight + fetch_one(position, c, (int)format);
        }
    }
    barrier(team);
}
