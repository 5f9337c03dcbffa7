/* The kernels of stage 6, or with -DWITH_INT8 those of stage 8, against plain loops in double precision, without Python
 * or torch: what can run where neither is, as on another CPU under an emulator (tests/test_other_cpus.py). A line for
 * each kind of work with its largest error, and one with the number of rows whose bits change with the company; the exit
 * status is the number of lines that are wrong.
 *
 *   cc -O3 -fno-tree-vectorize -fopenmp -I stage06_fast/kernels tests/kernels/check.c stage06_fast/kernels/[a-z]*.c -lm
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "kernels.h"

#define U_OF_SEED_5 0.7659821577998128 /* uniform(5, 0) of support/philox.py */

/* c_kernel.py calls these by name; see alone.c. */
void pack_alone(char *, const char *, int64_t, int64_t, int64_t, int64_t, int64_t, int, int);
void linear_alone(const Linear *, const Rows *, int64_t, int, float *, const Rows *, const Linear *, int);
void layer_norm_alone(const Rows *, const float *, const int64_t *, int64_t, int64_t, const float *, const float *,
                      float, int);
void sample_rows_alone(SampledRow *, int64_t, int64_t, char *, int);
void write_kv_alone(const Cache *, const Rows *, const Step *, int);
int paged_attention_alone(const Rows *, const Rows *, const Cache *, const Step *, int, int, int);
#ifdef WITH_INT8
void quantize_alone(const Rows *, const Rows *, int64_t, int64_t, int);
void embed_int8_alone(float *, const Linear *, const void *, int64_t, const int64_t *, const int64_t *, int64_t, int);
static int of_int8(int kind) { return kind == PAIRS_INT8 || kind == DOT_INT8 || kind == TILES_INT8; }
#else
static int of_int8(int kind) { return kind < 0; }
#endif

static const char *const kinds[] = {
    [FMA_FLOAT32] = "fma_float32",         [FMA_BFLOAT16] = "fma_bfloat16",     [DOT_BFLOAT16] = "dot_bfloat16",
    [TILES_BFLOAT16] = "tiles_bfloat16", [TILES_SPLIT] = "tiles_split",
#ifdef WITH_INT8
    [PAIRS_INT8] = "pairs_int8",           [DOT_INT8] = "dot_int8",             [TILES_INT8] = "tiles_int8",
#endif
};
enum { KINDS = sizeof(kinds) / sizeof(*kinds) };
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
    if (format == FLOAT16) bits &= (bits & 0x7fffffff) < 0x38800000 ? 0x80000000 : 0xffffe000; /* no subnormals */
    memcpy(&x, &bits, 4);
    return x;
}

static void put(const Rows *rows, int64_t row, int64_t column, float x) {
    char *at = rows->data + row * rows->stride;
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (rows->format == FLOAT32) memcpy(at + 4 * column, &x, 4);
    else if (rows->format == FLOAT16) {
        const uint32_t magnitude = bits << 1 ? (bits & 0x7fffffff) - (112 << 23) : 0;
        const uint16_t half = (uint16_t)((bits >> 16 & 0x8000) | magnitude >> 13);
        memcpy(at + 2 * column, &half, 2);
    } else {
        const float high = rounded(x, BFLOAT16), low = rounded(x - high, BFLOAT16);
        memcpy(at + 2 * column, (const char *)&high + 2, 2); /* a little-endian CPU's upper half */
        if (rows->format == SPLIT) memcpy(at + rows->plane + 2 * column, (const char *)&low + 2, 2);
    }
}

static Rows rows_of(int64_t count, int64_t width, int format) {
    const int64_t stride = round_up(width, 64) * size_of(format) + 64;
    return (Rows){memory(2 * count * stride), stride, count * stride, format};
}

/* What a number of a row stands for. */
static double number_at(const Rows *rows, int64_t row, int64_t column) {
    const char *at = rows->data + row * rows->stride;
    if (rows->format == SPLIT)
        return (double)fetch_one(at, column, BFLOAT16) + fetch_one(at + rows->plane, column, BFLOAT16);
#ifdef WITH_INT8
    if (rows->format == INT8) return (double)((const int8_t *)at)[column] * scale_of(rows, row)->scale;
    if (rows->format == INT16) return (double)((const int16_t *)at)[column] * scale_of(rows, row)->scale;
#endif
    return fetch_one(at, column, (int)rows->format);
}

/* Random rows as a kind wants them, and room behind them. */
static Rows some_rows(int kind, int64_t count, int64_t width) {
    const int format = of_int8(kind) ? FLOAT32 : rows_format(kind);
    const Rows x = rows_of(round_up(count, BLOCK), width, format);
    for (int64_t i = 0; i < count * width; i++) put(&x, i / width, i % width, some());
#ifdef WITH_INT8
    if (of_int8(kind)) {
        const Rows integers = rows_of(round_up(count, BLOCK), width, rows_format(kind));
        quantize_alone(&integers, &x, count, width, 2);
        free(x.data);
        return integers;
    }
#endif
    return x;
}

/* A layer of random weights, and what they stand for: [out, in]. */
static Linear some_layer(int kind, int64_t in, int64_t out, float *weight, int threads) {
    float *bias = memory(4 * round_up(out, PANEL));
    char *panels = memory((out + PANEL - 1) / PANEL * panel_bytes(kind, in));
    const int format = kind == FMA_FLOAT32 || kind == TILES_SPLIT ? FLOAT32 : BFLOAT16;
    for (int64_t i = 0; i < in * out; i++) weight[i] = rounded(some(), format);
    for (int64_t i = 0; i < out; i++) bias[i] = some();
#ifdef WITH_INT8
    if (of_int8(kind)) {
        int8_t *integers = memory(in * out);
        float *scales = memory(4 * round_up(out, PANEL));
        for (int64_t i = 0; i < out; i++) scales[i] = (1.5f + some()) / 127;
        for (int64_t i = 0; i < in * out; i++) {
            integers[i] = (int8_t)lrintf(127 * weight[i]);
            weight[i] = (float)integers[i] * scales[i / in];
        }
        pack_alone(panels, (const char *)integers, INT8, in, 1, out, in, kind, threads);
        free(integers);
        return (Linear){panels, bias, in, out, kind, scales};
    }
#endif
    pack_alone(panels, (const char *)weight, FLOAT32, in, 1, out, in, kind, threads);
    return (Linear){.panels = panels, .bias = bias, .in = in, .out = out, .kind = kind};
}

static void free_layer(const Linear *layer) {
    free((void *)layer->panels), free((void *)layer->bias);
#ifdef WITH_INT8
    free((void *)layer->scales);
#endif
}

static double plain_gelu(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

/* The largest error of a linear layer, as a share of the largest result. */
static double linear_error(int kind, int64_t num_rows, int64_t in, int64_t out, int epilogue, int threads) {
    const int64_t count = round_up(num_rows, BLOCK);
    const Rows x = some_rows(kind, num_rows, in), to = rows_of(count, out, FLOAT32);
    float *weight = memory(4 * in * out), *y = memory(4 * count * out);
    double *values = memory(8 * num_rows * in), error = 0, largest = 1e-9;
    for (int64_t i = 0; i < num_rows * in; i++) values[i] = number_at(&x, i / in, i % in);
    for (int64_t i = 0; i < num_rows * out; i++) y[i] = 1;
    const Linear layer = some_layer(kind, in, out, weight, threads);
    linear_alone(&layer, &x, num_rows, epilogue, y, &to, NULL, threads);
    for (int64_t r = 0; r < num_rows; r++)
        for (int64_t c = 0; c < out; c++) {
            double sum = layer.bias[c];
            for (int64_t i = 0; i < in; i++) sum += values[r * in + i] * weight[c * in + i];
            if (epilogue == GELU) sum = plain_gelu(sum);
            if (epilogue == ADD) sum += 1;
            const double is = epilogue >= TO_ROWS ? ((float *)(to.data + r * to.stride))[c] : y[r * out + c];
            error = fmax(error, fabs(is - sum)), largest = fmax(largest, fabs(sum));
        }
    free(x.data), free(to.data), free(weight), free(y), free(values), free_layer(&layer);
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

/* How many rows get other bits from a linear layer among few rows than among all. */
static int64_t linear_differs(int kind, int64_t all, int64_t in, int64_t out, int epilogue) {
    static const int counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 17, 32, 33, 65, 97};
    const Rows x = some_rows(kind, all, in), whole = rows_of(round_up(all, BLOCK), out, FLOAT32);
    float *weight = memory(4 * in * out);
    const Linear layer = some_layer(kind, in, out, weight, 1);
    int64_t differ = 0, first = 0;
    linear_alone(&layer, &x, all, epilogue, NULL, &whole, NULL, 1);
    for (size_t n = 0; n < sizeof(counts) / sizeof(*counts); n++) {
        first = (first + 11) % (all - counts[n] + 1);
        const Rows few = {x.data + first * x.stride, x.stride, x.plane, x.format}, to = rows_of(128, out, FLOAT32);
        linear_alone(&layer, &few, counts[n], epilogue, NULL, &to, NULL, 2);
        for (int64_t r = 0; r < counts[n]; r++)
            differ += memcmp(to.data + r * to.stride, whole.data + (first + r) * whole.stride, 4 * (size_t)out) != 0;
        free(to.data);
    }
    free(x.data), free(whole.data), free(weight), free_layer(&layer);
    return differ;
}

static void check_linear_bits(int kind) {
    /* 600 rows are two chunks; 768 inputs are several pieces of a panel. */
    const int64_t differ = linear_differs(kind, 600, 67, 45, GELU) + linear_differs(kind, 100, 768, 64, TO_ROWS);
    report("bits of a linear layer", kinds[kind], (double)differ, 0);
}

#ifdef WITH_INT8
/* How many sums of integers are not exact, with scales of 1, which leave them alone. */
static void check_sums(int kind) {
    enum { N = 37, IN = 1000, OUT = 45 };
    const Rows x = some_rows(kind, N, IN), to = rows_of(64, OUT, FLOAT32);
    float ones[64];
    int8_t *weight = memory(IN * OUT);
    char *panels = memory(2 * panel_bytes(kind, IN));
    int64_t wrongs = 0;
    for (int i = 0; i < 64; i++) ones[i] = 1;
    for (int i = 0; i < IN * OUT; i++) weight[i] = (int8_t)(i < IN ? 127 : i < 2 * IN ? -127 : lrintf(127 * some()));
    for (int r = 0; r < N; r++) scale_of(&x, r)->scale = 1;
    pack_alone(panels, (const char *)weight, INT8, IN, 1, OUT, IN, kind, 2);
    const Linear layer = {panels, NULL, IN, OUT, kind, ones};
    linear_alone(&layer, &x, N, TO_ROWS, NULL, &to, NULL, 2);
    for (int r = 0; r < N; r++)
        for (int c = 0; c < OUT; c++) {
            double sum = 0;
            for (int i = 0; i < IN; i++) sum += number_at(&x, r, i) * weight[c * IN + i];
            wrongs += number_at(&to, r, c) != sum;
        }
    free(x.data), free(to.data), free(weight), free(panels);
    report("sums of integers", kinds[kind], (double)wrongs, 0);
}

/* Each number is off by half a unit at most, also in the last row, which is of halves; its scale and sum are as said;
 * behind the numbers there are zeros. A row alone becomes what it is among others. */
static void check_quantize(int format) {
    enum { N = 9, WIDTH = 131 };
    const Rows x = rows_of(32, WIDTH, FLOAT32), to = rows_of(32, WIDTH, format), one = rows_of(1, WIDTH, format);
    const char *const what = format == INT8 ? "of 8 bits" : "of 16 bits";
    int64_t differ = 0;
    double error = 0;
    memset(to.data, 0xff, (size_t)(32 * to.stride));
    for (int i = 0; i < N * WIDTH; i++) {
        const int r = i / WIDTH, c = i % WIDTH;
        put(&x, r, c, r == N - 1 ? (c ? (float)c - 65.5f : 127) : ldexpf(some(), 20 * r - 60) * (r > 1));
    }
    quantize_alone(&to, &x, N, WIDTH, 3);
    for (int r = 0; r < N; r++) {
        double largest = 0;
        int64_t sum = 0;
        for (int c = 0; c < WIDTH; c++) largest = fmax(largest, fabs(number_at(&x, r, c)));
        for (int c = 0; c < round_up(WIDTH, 64); c++) {
            const char *at = to.data + r * to.stride;
            const int whole = format == INT8 ? ((const int8_t *)at)[c] : ((const int16_t *)at)[c];
            const double exact = c < WIDTH && largest > 0 ? number_at(&x, r, c) * 127 / largest : 0;
            /* Of a half, the even one; but in other rows a float's rounding may decide. */
            error = fmax(error, r == N - 1 ? fabs(whole - rint(exact)) : fabs(whole - exact) - 0.5);
            sum += whole;
        }
        error = fmax(error, fabs(scale_of(&to, r)->scale - largest / 127) / fmax(largest, 1e-300));
        error = fmax(error, (double)llabs(sum - scale_of(&to, r)->sum));
        const Rows alone = {x.data + r * x.stride, x.stride, 0, FLOAT32};
        quantize_alone(&one, &alone, 1, WIDTH, 1);
        differ += memcmp(one.data, to.data + r * to.stride, (size_t)(WIDTH * size_of(format))) != 0 ||
                  memcmp(scale_of(&one, 0), scale_of(&to, r), sizeof(Scale)) != 0;
    }
    free(x.data), free(to.data), free(one.data);
    report("integers", what, error, 1e-5);
    report("bits of integers", what, (double)differ, 0);
}

static void check_embed(int kind) {
    enum { TOKENS = 77, WIDTH = 35, N = 6 };
    static const int64_t ids[N] = {0, 76, 31, 32, 64, 1}, positions[N] = {0, 1, 2, 3, 1, 0};
    float *table = memory(4 * TOKENS * WIDTH), places[4][WIDTH], x[N][WIDTH];
    double error = 0;
    const Linear wte = some_layer(kind, WIDTH, TOKENS, table, 1);
    for (int i = 0; i < 4 * WIDTH; i++) places[i / WIDTH][i % WIDTH] = some();
    embed_int8_alone(*x, &wte, places, FLOAT32, ids, positions, N, 2);
    for (int t = 0; t < N; t++)
        for (int c = 0; c < WIDTH; c++)
            error = fmax(error, fabs(x[t][c] - ((double)table[ids[t] * WIDTH + c] + places[positions[t]][c])));
    free(table), free_layer(&wte);
    report("embedding", kinds[kind], error, 1e-6);
}
#endif

/* How many rows get other bits from a layer norm as the only one than among others. */
static void check_layer_norm_bits(void) {
    enum { N = 37, WIDTH = 131 };
    const Rows all = rows_of(64, WIDTH, FLOAT32), one = rows_of(32, WIDTH, FLOAT32);
    float x[N][WIDTH], ones[WIDTH], zeros[WIDTH] = {0};
    int64_t differ = 0;
    for (int c = 0; c < WIDTH; c++) ones[c] = 1;
    for (int i = 0; i < N * WIDTH; i++) x[i / WIDTH][i % WIDTH] = some();
    layer_norm_alone(&all, *x, NULL, N, WIDTH, ones, zeros, 1e-5f, 3);
    for (int64_t r = 0; r < N; r++) {
        layer_norm_alone(&one, *x, &r, 1, WIDTH, ones, zeros, 1e-5f, 1);
        differ += memcmp(one.data, all.data + r * all.stride, 4 * WIDTH) != 0;
    }
    free(all.data), free(one.data);
    report("bits of a layer norm", "", (double)differ, 0);
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

/* Greedy rows, rows of which top_k or top_p leave one token, and a draw and its log-probability against plain loops. */
static void check_sampler(void) {
    enum { N = 6, WIDTH = 5003 };
    float *logits = memory(4 * N * WIDTH);
    char *scratch = memory((size_t)(2 * sampler_bytes(WIDTH)));
    SampledRow rows[N];
    int64_t ids[2], ranks[2], misses = 0;
    double logprobs[2], sum = 0, passed = 0;
    for (int i = 0; i < N * WIDTH; i++) logits[i] = some();
    logits[WIDTH - 1] = logits[7] = 2, logits[WIDTH] = 2, logits[3 * WIDTH + 4000] = NAN;
    logits[2 * WIDTH + 9] = 3, logits[4 * WIDTH + 4711] = 4;
    for (int r = 0; r < N; r++)
        rows[r] = (SampledRow){.logits = logits + r * WIDTH, .raw = logits + r * WIDTH, .top_p = 1,
                               .repetition_penalty = 1, .num_logprobs = -1, .seed = (uint64_t)r};
    rows[2].temperature = rows[4].temperature = rows[5].temperature = 1;
    rows[2].top_k = 1, rows[4].top_p = 1e-6;
    rows[5].num_logprobs = 1, rows[5].top_ids = ids, rows[5].ranks = ranks, rows[5].logprobs = logprobs;
    sample_rows_alone(rows, N, WIDTH, scratch, 2);
    const int64_t expected[N - 1] = {7, 0, 9, -1, 4711};
    for (int r = 0; r < N - 1; r++) misses += rows[r].token_id != expected[r];
    const float *row = logits + 5 * WIDTH;
    for (int i = 0; i < WIDTH; i++) sum += exp(row[i]);
    for (int i = 0; i < rows[5].token_id; i++) passed += exp(row[i]) / sum;
    misses += !(passed <= U_OF_SEED_5 && U_OF_SEED_5 < passed + exp(row[rows[5].token_id]) / sum);
    misses += fabs(logprobs[0] - (row[ids[0]] - log(sum))) > 1e-5 || ids[0] != rows[5].token_id || ranks[1] != 1;
    free(logits), free(scratch);
    report("sampler", "", (double)misses, 0);
}

/* Two requests, one with `queries` queries and one with a single one, behind keys of earlier steps. */
static double attention_error(int format, int64_t dim, int64_t block_size, int64_t queries, int kind, int prompts,
                              int threads) {
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
    if (paged_attention_alone(&out, &query, &cache, &step, kind, prompts, threads)) exit(102);
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

static void check_attention(int kind, int format, int prompts) {
    static const int64_t sizes[][3] = {{64, 16, 1}, {64, 16, 5}, {64, 32, 40}, {48, 16, 40}, {20, 5, 9}, {24, 16, 3}, {96, 16, 2}};
    double error = 0;
    for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++)
        error = fmax(error, attention_error(format, sizes[s][0], sizes[s][1], sizes[s][2], kind, prompts,
                                            1 + (int)(s % 2)));
    char how[80];
    snprintf(how, sizeof(how), "%s, %s%s", formats[format], kinds[kind], prompts ? "" : ", a few at a time");
    /* With bfloat16 products, weights and scaled queries are rounded: to 2^-9 of values of up to 2.5. */
    report("attention", how, error, kind == FMA_FLOAT32 ? 2e-5 : 3e-2);
}

/* How many of a request's tokens get other bits when its queries come in pieces of `at_once` tokens, with threads and
 * a neighbor, than when they come all at once. unit: of the values. */
static int64_t attention_differs(int format, int64_t dim, int64_t block_size, int64_t at_once, int kind, int prompts,
                                 float unit) {
    enum { HEADS = 3, KEYS = 115, OTHERS = 21 };
    const int64_t width = HEADS * dim, blocks = (KEYS + block_size - 1) / block_size, size = size_of(format);
    int64_t *table = memory(8 * 2 * blocks), slots[KEYS], differ = 0;
    for (int64_t i = 0; i < 2 * blocks; i++) table[i] = blocks - 1 - i % blocks; /* the neighbor has the same ones */
    const int64_t bytes = blocks * width * block_size * size + 64;
    const Cache cache = {memory(bytes), memory(bytes), HEADS, dim, block_size, format};
    memset(cache.keys, 0xff, (size_t)bytes), memset(cache.values, 0xff, (size_t)bytes); /* not a number */
    const Rows all = rows_of(KEYS, 3 * width, format), whole = rows_of(KEYS, width, FLOAT32);
    for (int64_t i = 0; i < KEYS * 3 * width; i++)
        put(&all, i / (3 * width), i % (3 * width), rounded(3 * some() * (i / width % 3 == 2 ? unit : 1), format));
    for (int64_t t = 0; t < KEYS; t++) slots[t] = table[t / block_size] * block_size + t % block_size;
    Step step = {.slot_mapping = slots, .num_tokens = KEYS};
    write_kv_alone(&cache, &all, &step, 1);
    const int64_t one[] = {0, KEYS}, length = KEYS;
    step = (Step){.block_tables = table, .query_start_loc = one, .seq_lens = &length, .num_tokens = KEYS, .num_seqs = 1,
                  .table_width = blocks};
    if (paged_attention_alone(&whole, &all, &cache, &step, kind, 1, 1)) exit(102);
    for (int64_t first = 0; first < KEYS; first += at_once) {
        const int64_t count = KEYS - first < at_once ? KEYS - first : at_once;
        const int64_t starts[] = {0, count, count + (first < KEYS - OTHERS ? OTHERS : 0)};
        const int64_t lens[] = {first + count, first + OTHERS};
        const Rows query = {all.data + first * all.stride, all.stride, all.plane, format};
        const Rows out = rows_of(count + OTHERS, width, FLOAT32);
        step = (Step){.block_tables = table, .query_start_loc = starts, .seq_lens = lens, .num_tokens = starts[2],
                      .num_seqs = 1 + (starts[2] > count), .table_width = blocks};
        if (paged_attention_alone(&out, &query, &cache, &step, kind, prompts, 2)) exit(102);
        for (int64_t t = 0; t < count; t++)
            differ += memcmp(out.data + t * out.stride, whole.data + (first + t) * whole.stride, 4 * (size_t)width) != 0;
        free(out.data);
    }
    free(table), free(cache.keys), free(cache.values), free(all.data), free(whole.data);
    return differ;
}

static void check_attention_bits(int kind, int format) {
    static const int64_t sizes[][2] = {{64, 16}, {64, 32}, {48, 16}, {20, 5}, {24, 16}, {16, 32}, {34, 16}, {128, 16}};
    static const int64_t at_once[] = {1, 3, 8, 33};
    int64_t differ = 0;
    for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++)
        for (size_t n = 0; n < sizeof(at_once) / sizeof(*at_once); n++)
            for (int prompts = 0; prompts < 2; prompts++)
                for (int tiny = 0; tiny < (format == FLOAT16 ? 1 : 2); tiny++) /* near a float32's smallest numbers */
                    differ += attention_differs(format, sizes[s][0], sizes[s][1], at_once[n], kind, prompts,
                                                tiny ? 0x1p-127f : 1);
    char how[60];
    snprintf(how, sizeof(how), "%s, %s", formats[format], kinds[kind]);
    report("bits of attention", how, (double)differ, 0);
}

int main(void) {
    for (int kind = 0; kind < KINDS; kind++) {
        if (has_kind(kind)) check_linear(kind), check_linear_bits(kind);
        else printf("-- %s: not on this CPU\n", kinds[kind]);
#ifdef WITH_INT8
        if (of_int8(kind) && has_kind(kind)) check_sums(kind), check_embed(kind);
    }
    check_quantize(INT8), check_quantize(INT16);
#else
    }
#endif
    check_layer_norm();
    check_layer_norm_bits();
    check_sampler();
    for (int format = 0; format <= FLOAT16; format++)
        for (int kind = 0; kind <= TILES_BFLOAT16; kind++) {
            const int bfloat16 = kind == DOT_BFLOAT16 || kind == TILES_BFLOAT16;
            if (kind != FMA_FLOAT32 && !(bfloat16 && format == BFLOAT16 && has_kind(kind))) continue;
            for (int prompts = 0; prompts < 2; prompts++) check_attention(kind, format, prompts);
            check_attention_bits(kind, format);
        }
    return wrong;
}
