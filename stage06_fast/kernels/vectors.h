/* Vectors as wide as the CPU's registers, and the formats of numbers.
 *
 * Their types are the compiler's (GCC's and Clang's) own: the same text becomes AVX-512, AVX2, SSE or NEON.
 */
#ifndef VECTORS_H
#define VECTORS_H
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__ /* only there: to read it takes the compiler half a second, in each file */
#include <immintrin.h>
#endif
#if defined(__AVX512F__)
#define LANES 16 /* floats in a vector */
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#define INLINE static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t hvec __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

/* SPLIT is a float32 as the sum of two bfloat16s: 16 bits of its 24-bit mantissa. */
enum { FLOAT32, BFLOAT16, FLOAT16, SPLIT };

INLINE int64_t size_of(int format) { return format == FLOAT32 ? 4 : 2; } /* bytes; of a SPLIT's half */
INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

INLINE vec splat(float x) {
#if LANES == 16
    return (vec){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
#elif LANES == 8
    return (vec){x, x, x, x, x, x, x, x}; /* one instruction; {0} + x would be three */
#else
    return (vec){x, x, x, x};
#endif
}
INLINE vec splat_bits(int32_t x) {
    float same;
    memcpy(&same, &x, 4);
    return splat(same);
}
INLINE vec load(const float *from) { return *(const vec *)from; }
INLINE void store(float *to, vec x) { *(vec *)to = x; }
INLINE vec larger(vec a, vec b) {
#ifdef __AVX512F__
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    typedef float whole __attribute__((vector_size(32)));
    return (vec)__builtin_ia32_maxps256((whole)a, (whole)b);
#else
    return (vec)(((ivec)a & (a > b)) | ((ivec)b & (a <= b)));
#endif
}

INLINE float largest_of(vec x) {
#ifdef __AVX512F__
    return _mm512_reduce_max_ps((__m512)x);
#else
    float largest = x[0];
    for (int i = 1; i < LANES; i++) largest = x[i] > largest ? x[i] : largest;
    return largest;
#endif
}

INLINE float sum_of(vec x) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += x[i];
    return sum;
}

/* LANES numbers from memory, as float32. */
INLINE vec fetch(const void *from, int format) {
    if (format == FLOAT32) return *(const vec *)from;
    const ivec bits = __builtin_convertvector(*(const hvec *)from, ivec);
    if (format == BFLOAT16) return (vec)(bits << 16);              /* the upper half of a float32 */
    const vec magnitude = (vec)((bits & 0x7fff) << 13) * 0x1p112f; /* another bias; infinity becomes 65536 */
    return (vec)((ivec)magnitude | (bits & 0x8000) << 16);
}

/* The even or the odd ones of LANES pairs of bfloat16, as float32. */
INLINE vec half_of(const void *pairs, int odd) {
    const ivec both = *(const ivec *)pairs;
    return odd ? (vec)(both & ~0xffff) : (vec)(both << 16);
}

/* One number of a format. */
INLINE float fetch_one(const void *from, int64_t i, int format) {
    if (format == FLOAT32) return ((const float *)from)[i];
    const hvec same = ((const uint16_t *)from)[i] - (hvec){0};
    return fetch(&same, format)[0];
}

/* To the nearest bfloat16, ties to even. */
INLINE hvec to_bfloat16(vec x) {
#ifdef __AVX512BF16__
    return (hvec)_mm512_cvtneps_pbh((__m512)x);
#else
    const ivec bits = (ivec)x;
    return __builtin_convertvector((bits + 0x7fff + (bits >> 16 & 1)) >> 16 & 0xffff, hvec);
#endif
}

/* 1 / x to 1e-7: an estimate and one step of Newton's method. A division would take three times as long. */
INLINE vec reciprocal(vec x) {
#if defined(__AVX512F__)
    const vec r = (vec)_mm512_rcp14_ps((__m512)x);
    return r * (2 - x * r);
#elif defined(__AVX__)
    typedef float whole __attribute__((vector_size(32)));
    const vec r = (vec)__builtin_ia32_rcpps256((whole)x);
    return r * (2 - x * r);
#else
    return 1 / x;
#endif
}

/* e^x for x <= 0, to 3e-7: 2^n 2^r with |r| <= 1/2, and 2^r by the polynomial of degree 5 that is closest to
 * it there. */
INLINE vec exponential(vec x) {
    /* Adding 1.5 * 2^23 leaves no bits behind the point. */
    const vec rounded = larger(x, splat(-87.0f)) * 1.44269504f + 12582912.0f;
    const vec r = larger(x, splat(-87.0f)) * 1.44269504f - (rounded - 12582912.0f);
    vec p = r * 1.32764715e-3f + 9.67554159e-3f;
    p = (((p * r + 5.55071328e-2f) * r + 2.40221197e-1f) * r + 6.93146967e-1f) * r + 1.0f;
    return (vec)((ivec)p + ((ivec)rounded << 23)); /* n is in the lowest bits, and is added to the exponent */
}

/* A matrix of activations, row behind row. What products read has room for a whole number of vectors and 32s
 * in each row, and zeros behind its last number (rows() in fast_model.py); other rows are read and written by
 * read_row and write_some. The second halves of a SPLIT lie `plane` bytes on. */
typedef struct {
    char *data;
    int64_t stride, plane; /* bytes */
    int64_t format;
} Rows;

INLINE void write_row(const Rows *to, int64_t row, int64_t column, vec x) {
    char *at = to->data + row * to->stride + column * size_of((int)to->format);
    if (to->format == FLOAT32) {
        *(vec *)at = x;
        return;
    }
    const hvec high = to_bfloat16(x);
    *(hvec *)at = high;
    if (to->format == SPLIT) *(hvec *)(at + to->plane) = to_bfloat16(x - fetch(&high, BFLOAT16));
}

/* Prefetch `count` numbers of a row, to read them (not of a SPLIT) or to write there: for that, too, the CPU has
 * to have a line of memory. Clang wants to see which of the two it is. */
INLINE void ask_for(const Rows *rows, int64_t row, int64_t column, int64_t count, const int writing) {
    const int64_t size = size_of((int)rows->format);
    const char *at = rows->data + row * rows->stride + column * size;
    for (int64_t i = 0; i < count * size; i += 64) {
        if (writing) __builtin_prefetch(at + i, 1);
        else __builtin_prefetch(at + i);
        if (writing && rows->format == SPLIT) __builtin_prefetch(at + rows->plane + i, 1);
    }
}

/* `count` floats, at most a vector; zeros behind them. */
INLINE vec load_some(const float *from, int64_t count) {
    if (count >= LANES) return load(from);
    vec x = {0};
    if (count > 0) memcpy(&x, from, sizeof(float) * (size_t)count);
    return x;
}

/* `count` numbers of a row, as float32; not of a SPLIT. */
INLINE vec read_row(const Rows *from, int64_t row, int64_t column, int64_t count) {
    const int64_t size = size_of((int)from->format);
    const char *at = from->data + row * from->stride + column * size;
    if (count >= LANES) return fetch(at, (int)from->format);
    char buffer[sizeof(vec)] = {0};
    if (count > 0) memcpy(buffer, at, (size_t)(count * size));
    return fetch(buffer, (int)from->format);
}

/* The first `count` of a vector. */
INLINE void write_some(const Rows *to, int64_t row, int64_t column, vec x, int64_t count) {
    if (count >= LANES) {
        write_row(to, row, column, x);
        return;
    }
    char buffer[2][sizeof(vec)];
    const Rows one = {buffer[0], 0, (int64_t)sizeof(vec), to->format};
    char *at = to->data + row * to->stride + column * size_of((int)to->format);
    write_row(&one, 0, 0, x);
    memcpy(at, buffer[0], (size_t)(count * size_of((int)to->format)));
    if (to->format == SPLIT) memcpy(at + to->plane, buffer[1], (size_t)(2 * count));
}
#endif
