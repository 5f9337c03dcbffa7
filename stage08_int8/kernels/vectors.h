/* Vectors as wide as the CPU's registers, and the formats of numbers. The vector types are GCC's and Clang's: the same
 * text becomes AVX-512, AVX2, SSE or NEON. */
#ifndef VECTORS_H
#define VECTORS_H
#include <stdint.h>
#include <string.h>
#if defined(__AVX512F__) || defined(__AVXVNNI__) /* only there: reading it takes half a second in each file */
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
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
typedef int8_t bvec __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef int16_t pairs_vec __attribute__((vector_size(4 * LANES), aligned(2), may_alias));

/* SPLIT is a float32 as the sum of two bfloat16s: 16 bits of its 24-bit mantissa. INT8 and INT16 are integers from
 * -127 to 127, in rows that have a scale; see quantize.c. */
enum { FLOAT32, BFLOAT16, FLOAT16, SPLIT, INT8, INT16 };

/* Bytes of a number; of a SPLIT's half. */
INLINE int64_t size_of(int format) { return format == FLOAT32 ? 4 : format == INT8 ? 1 : 2; }
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
/* sum + a * b, rounded once where the CPU can. Left alone, the compiler fuses the two in one place and not in another;
 * spelled out, everything that adds in the same order gives the same bits. */
INLINE vec multiply_add(vec sum, vec a, vec b) {
#ifdef __AVX512F__
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__FMA__) && LANES == 8
    typedef float m256 __attribute__((vector_size(32)));
    return (vec)__builtin_ia32_vfmaddps256((m256)a, (m256)b, (m256)sum);
#elif defined(__aarch64__)
    return (vec)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#else
    return sum + a * b;
#endif
}
/* The second one if one is NaN. */
INLINE vec larger(vec a, vec b) {
#ifdef __AVX512F__
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    typedef float m256 __attribute__((vector_size(32)));
    return (vec)__builtin_ia32_maxps256((m256)a, (m256)b);
#else
    return (vec)(((ivec)a & (a > b)) | ((ivec)b & ~(a > b)));
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
    if (format == BFLOAT16) return (vec)(bits << 16); /* the upper half of a float32 */
#if defined(__AVX512F__)
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256(from));
#elif defined(__F16C__) && LANES == 8
    typedef int16_t m128 __attribute__((vector_size(16)));
    return (vec)__builtin_ia32_vcvtph2ps256((m128)*(const hvec *)from);
#else
    /* The exponents of float16 and float32 have biases of 15 and 127; the largest is that of infinity and NaN. */
    const vec x = (vec)(((bits & 0x8000) << 16) | ((bits & 0x7fff) << 13)) * 0x1p112f;
    return (vec)((ivec)x | (((bits & 0x7c00) == 0x7c00) & 0x7f800000));
#endif
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

/* (0 2 4 ...), (1 3 5 ...) -> (0 1 2 ...), in two vectors. */
#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (ivec){__VA_ARGS__})
#endif
INLINE void interleave(vec *two) {
    const vec a = two[0], b = two[1];
#if LANES == 16
    two[0] = SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    two[1] = SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif LANES == 8
    two[0] = SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    two[1] = SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
    two[0] = SHUFFLE(a, b, 0, 4, 1, 5);
    two[1] = SHUFFLE(a, b, 2, 6, 3, 7);
#endif
}

/* In each lane, sum += a0 * w0 + a1 * w1: `pairs` holds the a's, w the w's. Tests may define their own. */
#if defined(HAS_DOT)
#elif defined(__AVX512BF16__)
#define HAS_DOT
#define DOT(sum, pairs, w) (sum) = (vec)_mm512_dpbf16_ps((__m512)(sum), (__m512bh)(pairs), (__m512bh)(w))
#endif

/* In each lane, sum += a0 * w0 + a1 * w1 + a2 * w2 + a3 * w3, where `fours` holds the a's. Where the instruction takes
 * one factor unsigned, that is the weight, with OFFSET added. (With that, AVX2's older vpmaddubsw is no
 * substitute: it saturates sums of pairs at 16 bits, and 2 * 255 * 127 does not fit.) */
#if defined(HAS_DOT_INT8)
#elif defined(__AVX512VNNI__)
#define HAS_DOT_INT8
#define OFFSET 128
#define DOT_INT8S(sum, fours, w) (sum) = (vec)_mm512_dpbusd_epi32((__m512i)(sum), (__m512i)(w), (__m512i)(fours))
#elif defined(__AVXVNNI__)
#define HAS_DOT_INT8
#define OFFSET 128
#define DOT_INT8S(sum, fours, w) (sum) = (vec)_mm256_dpbusd_avx_epi32((__m256i)(sum), (__m256i)(w), (__m256i)(fours))
#endif
#ifndef OFFSET
#define OFFSET 0
#endif

/* In each lane, sum += a0 * w0 + a1 * w1, for pairs of int16. Every CPU has this in some form. */
INLINE vec add_pairs(vec sum, ivec pairs, ivec w) {
#if defined(__AVX512BW__)
    return (vec)((ivec)sum + (ivec)_mm512_madd_epi16((__m512i)pairs, (__m512i)w));
#elif defined(__AVX2__) && LANES == 8
    ivec both; /* assembly, because GCC would compute all products first, and has no registers for them */
    __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(both) : "x"(pairs), "x"(w));
    return sum;
#elif defined(__SSE2__) && LANES == 4
    typedef int16_t m128 __attribute__((vector_size(16)));
    return (vec)((ivec)sum + (ivec)__builtin_ia32_pmaddwd128((m128)pairs, (m128)w));
#else
    return (vec)((ivec)sum + (pairs << 16 >> 16) * (w << 16 >> 16) + (pairs >> 16) * (w >> 16));
#endif
}

/* LANES pairs of int8, as pairs of int16. */
INLINE ivec widen_pairs(const void *from) {
#if defined(__AVX512BW__)
    return (ivec)_mm512_cvtepi8_epi16(_mm256_loadu_si256(from));
#elif defined(__AVX2__) && LANES == 8 /* one instruction; GCC 12 makes five of what is below */
    ivec wide;
    __asm__("vpmovsxbw %1, %0" : "=x"(wide) : "m"(*(const char(*)[16])from));
    return wide;
#else
    typedef int8_t bytes __attribute__((vector_size(2 * LANES), aligned(1), may_alias));
    return (ivec)__builtin_convertvector(*(const bytes *)from, pairs_vec);
#endif
}

/* (a0 b0 a1 b1 ...), from LANES bfloat16s at a and as many at b. */
INLINE ivec zip(const void *a, const void *b) {
#ifdef __AVX512BW__ /* three instructions; GCC 12 makes twelve of what is below */
    static const uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i first = _mm512_castsi256_si512(_mm256_loadu_si256(a));
    const __m512i both = _mm512_inserti64x4(first, _mm256_loadu_si256(b), 1);
    return (ivec)_mm512_permutexvar_epi16(_mm512_loadu_si512(order), both);
#else
    return __builtin_convertvector(*(const hvec *)a, ivec) | __builtin_convertvector(*(const hvec *)b, ivec) << 16;
#endif
}

/* The same four bytes in every lane: a pair of 16-bit numbers, or four int8. */
INLINE ivec splat_pair(const void *from) {
    int32_t pair;
    memcpy(&pair, from, 4);
    return (ivec)splat_bits(pair);
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

/* To the nearest float16, ties to even; from 65520 on, to infinity. */
INLINE hvec to_float16(vec x) {
    const ivec bits = (ivec)x, magnitude = bits & 0x7fffffff;
    const ivec usual = (magnitude - (112 << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13; /* 112 = 127 - 15: the biases */
    /* Subnormal float16s are multiples of 2^-24, which is the last bit of 0.5 as a float32. */
    const ivec small = (ivec)((vec)magnitude + 0.5f) - 0x3f000000;
    const ivec tiny = magnitude < 0x38800000, large = magnitude > 0x47800000, nan = magnitude > 0x7f800000;
    const ivec half = (small & tiny) | (usual & ~tiny & ~large) | (large & 0x7c00) | (nan & 0x200);
    return __builtin_convertvector(half | (bits >> 16 & 0x8000), hvec);
}

/* 1 / x to 1e-7: an estimate and a step of Newton's method, three times as fast as a division. */
INLINE vec reciprocal(vec x) {
#if defined(__AVX512F__)
    const vec r = (vec)_mm512_rcp14_ps((__m512)x);
    return r * (2 - x * r);
#elif defined(__AVX__)
    typedef float m256 __attribute__((vector_size(32)));
    const vec r = (vec)__builtin_ia32_rcpps256((m256)x);
    return r * (2 - x * r);
#else
    return 1 / x;
#endif
}

/* e^x for x <= 0, to 3e-7: 2^n 2^r with |r| <= 1/2, and 2^r by the closest polynomial of degree 5. NaN stays NaN. */
INLINE vec exponential(vec x) {
    /* Adding 1.5 * 2^23 leaves no bits after the point. */
    const vec rounded = larger(splat(-87.0f), x) * 1.44269504f + 12582912.0f;
    const vec r = larger(splat(-87.0f), x) * 1.44269504f - (rounded - 12582912.0f);
    vec p = r * 1.32764715e-3f + 9.67554159e-3f;
    p = (((p * r + 5.55071328e-2f) * r + 2.40221197e-1f) * r + 6.93146967e-1f) * r + 1.0f;
    return (vec)((ivec)p + ((ivec)rounded << 23)); /* n is in the lowest bits, and is added to the exponent */
}

/* A matrix of activations, row by row. Rows that products read have room for whole vectors and a multiple of 32
 * numbers, with zeros after the last one (rows() in fast_model.py). Others may end anywhere; read_row and write_some
 * stay within them. The lower halves of a SPLIT are `plane` bytes further on. */
typedef struct {
    char *data;
    int64_t stride, plane; /* bytes */
    int64_t format;
} Rows;

/* A whole vector, in the format of the rows. */
INLINE void write_row(const Rows *to, int64_t row, int64_t column, vec x) {
    char *at = to->data + row * to->stride + column * size_of((int)to->format);
    if (to->format == FLOAT32) {
        *(vec *)at = x;
        return;
    }
    if (to->format == FLOAT16) {
        *(hvec *)at = to_float16(x);
        return;
    }
    const hvec high = to_bfloat16(x);
    *(hvec *)at = high;
    if (to->format == SPLIT) *(hvec *)(at + to->plane) = to_bfloat16(x - fetch(&high, BFLOAT16));
}

/* Prefetch `count` numbers of a row, to read them (not of a SPLIT) or to write them, which needs their cache lines,
 * too. Clang wants a constant in each prefetch. */
INLINE void prefetch_row(const Rows *rows, int64_t row, int64_t column, int64_t count, const int writing) {
    const int64_t size = size_of((int)rows->format);
    const char *at = rows->data + row * rows->stride + column * size;
    for (int64_t i = 0; i < count * size; i += 64) {
        if (writing) __builtin_prefetch(at + i, 1);
        else __builtin_prefetch(at + i);
        if (writing && rows->format == SPLIT) __builtin_prefetch(at + rows->plane + i, 1);
    }
}

/* `count` floats, at most a vector, then zeros. */
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

/* As write_row, but only the first `count` numbers of the vector. */
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
