/* Stage 6's kernels against plain loops in double precision, without Python or torch: what can run where neither is,
 * as on another CPU under an emulator (tests/test_other_cpus.py). A line for each kind of work with its largest error; the
 * exit status is the number of those that are wrong.
 *
 *   cc -O3 -fno-tree-vectorize -fopenmp -I stage06_fast/kernels tests/kernels/check.c stage06_fast/kernels/[a-z]*.c -lm
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "kernels.h"

/* c_kernel.py calls these by name; see alone.c. */
void pack_alone(char *, const char *, int64_t, int64_t, int64_t, int64_t, int64_t, int, int);
void linear_alone(const Linear *, const Rows *, int64_t, int, float *, const Rows *, const Linear *, int);
void layer_norm_alone(const Rows *, const float *, const int64_t *, int64_t, int64_t, const float *, const float *,
                      float, int);
void argmax_alone(int64_t *, const float *, int64_t, int64_t, int);
void write_kv_alone(const Cache *, const Rows *, const Step *, int);
int paged_attention_alone(const Rows *, const Rows *, const Cache *, const Step *, int, int);

static const char *const kinds[] = {"fma_float32",     "fma_bfloat16",   "dot_bfloat16",
                                    "matrix_bfloat16", "tiles_bfloat16", "tiles_split"};
static const char *const formats[] = {"float32", "bfloat16", "float16"};
static int wrong = 0;

static void report(const char *what, const char *how, double error, double limit) {
    const int bad = !(error <= limit);
    printf("%s %s %s: %.1e of %.1e\n", bad ? "WRONG" : "ok", what, how, error, limit);
    wrong += bad;
}

static void *memory(int64_t bytes) {
    void *at = aligned_alloc(64, (size_t)round_up(bytes, 64));
    if (!at) exit(100);
    return memset(at, 0, (size_t)round_up(bytes, 64));
}

static uint32_t state = 1;
static float some(void) { /* between -1 and 1 */
    state = state * 1664525u + 1013904223u;
    return (float)(int32_t)state / 2147483648.0f;
}

/* As the formats hold it. */
static float rounded(float x, int format) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (format == BFLOAT16) bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    if (format == FLOAT16) bits &= 0xffffe000; /* what is tried is a normal number in float16 too */
    memcpy(&x, &bits, 4);
    return x;
}

static void put(const Rows *rows, int64_t row, int64_t column, float x) {
    char *at = rows->data + row * rows->stride;
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (rows->format == FLOAT32) memcpy(at + 4 * column, &x, 4);
    else if (rows->format == FLOAT16) {
        const uint16_t half = (uint16_t)((bits >> 16 & 0x8000) | (((bits >> 13) - (112 << 10)) & 0x7fff));
        memcpy(at + 2 * column, &half, 2);
    } else {
        const float high = rounded(x, BFLOAT16), low = rounded(x - high, BFLOAT16);
        memcpy(at + 2 * column, (const char *)&high + 2, 2); /* a little-endian CPU's upper half */
        if (rows->format == SPLIT) memcpy(at + rows->plane + 2 * column, (const char *)&low + 2, 2);
    }
}

static Rows rows_of(int64_t count, int64_t width, int format) {
    const int64_t stride = round_up(width, 32) * (format == FLOAT32 ? 4 : 2) + 64;
    return (Rows){memory(2 * count * stride), stride, count * stride, format};
}

static double plain_gelu(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

/* The largest error of a linear layer, as a share of the largest result. */
static double linear_error(int kind, int64_t num_rows, int64_t in, int64_t out, int epilogue, int threads) {
    const int format = kind == FMA_FLOAT32 || kind == TILES_SPLIT ? FLOAT32 : BFLOAT16, given = rows_format(kind);
    const int64_t count = round_up(num_rows, BLOCK);
    const Rows x = rows_of(count, in, given), to = rows_of(count, out, FLOAT32);
    float *weight = memory(4 * in * out), *bias = memory(4 * round_up(out, PANEL)), *y = memory(4 * count * out);
    double *values = memory(8 * num_rows * in), error = 0, largest = 1e-9;
    for (int64_t i = 0; i < num_rows * in; i++) {
        values[i] = rounded(some(), given == BFLOAT16 ? BFLOAT16 : FLOAT32);
        put(&x, i / in, i % in, (float)values[i]);
    }
    for (int64_t i = 0; i < in * out; i++) weight[i] = rounded(some(), format);
    for (int64_t i = 0; i < out; i++) bias[i] = some();
    for (int64_t i = 0; i < num_rows * out; i++) y[i] = 1;
    char *panels = memory((out + PANEL - 1) / PANEL * panel_bytes(kind, in));
    pack_alone(panels, (const char *)weight, FLOAT32, in, 1, out, in, kind, threads);
    const Linear layer = {panels, bias, in, out, kind};
    linear_alone(&layer, &x, num_rows, epilogue, y, &to, NULL, threads);
    for (int64_t r = 0; r < num_rows; r++)
        for (int64_t c = 0; c < out; c++) {
            double sum = bias[c];
            for (int64_t i = 0; i < in; i++) sum += values[r * in + i] * weight[c * in + i];
            if (epilogue == GELU) sum = plain_gelu(sum);
            if (epilogue == ADD) sum += 1;
            const double is = epilogue >= TO_ROWS ? ((float *)(to.data + r * to.stride))[c] : y[r * out + c];
            error = fmax(error, fabs(is - sum)), largest = fmax(largest, fabs(sum));
        }
    free(x.data), free(to.data), free(weight), free(bias), free(y), free(values), free(panels);
    return error / largest;
}

static void check_linear(int kind) {
    static const int64_t shapes[][2] = {{64, 32}, {131, 77}, {768, 96}, {1000, 64}}; /* in, out */
    static const int counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 31, 32, 33, 70};
    double error = 0;
    for (size_t s = 0; s < sizeof(shapes) / sizeof(*shapes); s++)
        for (size_t n = 0; n < sizeof(counts) / sizeof(*counts); n++)
            error = fmax(error, linear_error(kind, counts[n], shapes[s][0], shapes[s][1], (int)((s + n) % 4),
                                             1 + (int)(n % 3)));
    report("linear layer", kinds[kind], error, kind == TILES_SPLIT ? 3e-5 : 2e-6);
}

static void check_layer_norm(void) {
    enum { N = 5, WIDTH = 131 };
    const Rows to = rows_of(32, WIDTH, FLOAT32);
    float x[N][WIDTH], weight[WIDTH], bias[WIDTH];
    double error = 0;
    for (int c = 0; c < WIDTH; c++) weight[c] = some(), bias[c] = some();
    for (int r = 0; r < N; r++)
        for (int c = 0; c < WIDTH; c++) x[r][c] = 3 + some();
    layer_norm_alone(&to, *x, NULL, N, WIDTH, weight, bias, 1e-5f, 2);
    for (int r = 0; r < N; r++) {
        double mean = 0, square = 0;
        for (int c = 0; c < WIDTH; c++) mean += x[r][c] / WIDTH;
        for (int c = 0; c < WIDTH; c++) square += (x[r][c] - mean) * (x[r][c] - mean) / WIDTH;
        for (int c = 0; c < WIDTH; c++) {
            const double y = (x[r][c] - mean) / sqrt(square + 1e-5) * weight[c] + bias[c];
            error = fmax(error, fabs(y - ((float *)(to.data + r * to.stride))[c]));
        }
    }
    free(to.data);
    report("layer norm", "", error, 1e-5);
}

static void check_argmax(void) {
    enum { N = 4, WIDTH = 5003 };
    float *logits = memory(4 * N * WIDTH);
    int64_t best[N], misses = 0;
    for (int i = 0; i < N * WIDTH; i++) logits[i] = some();
    logits[WIDTH - 1] = logits[7] = 2, logits[WIDTH] = 2, logits[3 * WIDTH + 4000] = NAN;
    const int64_t first[N] = {7, 0, -2, -1};
    argmax_alone(best, logits, N, WIDTH, 2);
    for (int r = 0; r < N; r++) misses += first[r] == -2 ? best[r] < 0 : best[r] != first[r];
    free(logits);
    report("argmax", "", (double)misses, 0);
}

/* Two requests, one with `queries` queries and one with a single one, behind keys of earlier steps. */
static double attention_error(int format, int64_t dim, int64_t block_size, int64_t queries, int kind, int threads) {
    enum { HEADS = 3, KEYS = 90 };
    const int64_t width = HEADS * dim, per_request = (KEYS + block_size - 1) / block_size, size = size_of(format);
    const int64_t blocks = 2 * per_request, n = queries + 1, lens[] = {KEYS, KEYS - 13};
    const int64_t starts[] = {0, queries, n};
    int64_t *table = memory(8 * blocks), *slots = memory(8 * 2 * KEYS);
    for (int64_t i = 0; i < blocks; i++) table[i] = (i * 7 + 3) % blocks; /* 7 has no factor of their number */
    while (blocks % 7 == 0) exit(101);
    const Cache cache = {memory(blocks * width * block_size * size + 64), memory(blocks * width * block_size * size + 64),
                         HEADS, dim, block_size, format};
    const Rows all = rows_of(2 * KEYS, 3 * width, format); /* of every token: query, key, value */
    float *plain = memory(4 * 2 * KEYS * 3 * width);
    for (int64_t i = 0; i < 2 * KEYS * 3 * width; i++) {
        plain[i] = rounded(some() + 1.5f, format);
        put(&all, i / (3 * width), i % (3 * width), plain[i]);
    }
    for (int64_t t = 0; t < 2 * KEYS; t++)
        slots[t] = table[t / KEYS * per_request + t % KEYS / block_size] * block_size + t % KEYS % block_size;
    Step step = {.slot_mapping = slots, .num_tokens = 2 * KEYS};
    write_kv_alone(&cache, &all, &step, threads);
    const Rows query = rows_of(n, 3 * width, format), out = rows_of(n, width, FLOAT32);
    int64_t which[KEYS + 1]; /* the token that each query is of */
    for (int64_t q = 0; q < n; q++) {
        which[q] = q < queries ? lens[0] - queries + q : KEYS + lens[1] - 1;
        for (int64_t c = 0; c < width; c++) put(&query, q, c, plain[which[q] * 3 * width + c]);
    }
    step = (Step){.block_tables = table, .query_start_loc = starts, .seq_lens = lens, .num_tokens = n, .num_seqs = 2,
                  .table_width = per_request};
    if (paged_attention_alone(&out, &query, &cache, &step, kind, threads)) exit(102);
    double error = 0;
    for (int64_t q = 0; q < n; q++)
        for (int64_t h = 0; h < HEADS; h++) {
            const int64_t begin = q < queries ? 0 : KEYS, count = which[q] - begin + 1;
            double weights[KEYS], sum = 0, most = -INFINITY;
            for (int64_t k = 0; k < count; k++) {
                weights[k] = 0;
                for (int64_t d = 0; d < dim; d++)
                    weights[k] += plain[which[q] * 3 * width + h * dim + d] *
                                  plain[(begin + k) * 3 * width + width + h * dim + d] / sqrt((double)dim);
                most = fmax(most, weights[k]);
            }
            for (int64_t k = 0; k < count; k++) sum += weights[k] = exp(weights[k] - most);
            for (int64_t d = 0; d < dim; d++) {
                double y = 0;
                for (int64_t k = 0; k < count; k++)
                    y += weights[k] / sum * plain[(begin + k) * 3 * width + 2 * width + h * dim + d];
                error = fmax(error, fabs(y - ((float *)(out.data + q * out.stride))[h * dim + d]));
            }
        }
    free(table), free(slots), free(cache.keys), free(cache.values), free(all.data), free(plain), free(query.data);
    free(out.data);
    return error;
}

static void check_attention(int kind, int format) {
    static const int64_t sizes[][3] = {{64, 16, 1}, {64, 16, 5}, {64, 32, 40}, {48, 16, 40}, {20, 5, 9}};
    double error = 0;
    for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++)
        error = fmax(error, attention_error(format, sizes[s][0], sizes[s][1], sizes[s][2], kind, 1 + (int)(s % 2)));
    char how[60];
    snprintf(how, sizeof(how), "%s, %s", formats[format], kind < 0 ? "query by query" : kinds[kind]);
    /* With bfloat16 products, weights and scaled queries are rounded: to 2^-9 of values of up to 2.5. */
    report("attention", how, error, kind <= FMA_FLOAT32 ? 2e-5 : 3e-2);
}

int main(void) {
    for (int kind = 0; kind <= TILES_SPLIT; kind++)
        if (has_kind(kind)) check_linear(kind);
        else printf("-- %s: not on this CPU\n", kinds[kind]);
    check_layer_norm();
    check_argmax();
    for (int format = 0; format <= FLOAT16; format++)
        for (int kind = -1; kind <= TILES_BFLOAT16; kind++) {
            const int bfloat16 = kind == DOT_BFLOAT16 || kind == TILES_BFLOAT16;
            if (kind <= FMA_FLOAT32 || (bfloat16 && format == BFLOAT16 && has_kind(kind))) check_attention(kind, format);
        }
    return wrong;
}
