/* What exercises 6.2 to 6.5 share: sizes, types, and the functions that you write. */
#ifndef LINEAR_H
#define LINEAR_H
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#define PANEL 32 /* columns of a panel */
#ifdef __AVX512F__
#define LANES 16 /* numbers of a vector register */
#define GROUP 8  /* rows that are computed together: their sums take 16 of 32 registers */
#else
#define LANES 8
#define GROUP 3 /* 12 of 16 registers */
#endif

/* A register full of numbers: + and * work on all of them at once. It may be read from and written to anywhere in an
 * array: `*(const vec *)(panel + 5)` are its numbers 5, 6, 7 and so on. */
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* A function that is still to be written says so. */
#define NOT_WRITTEN not_written(__LINE__)
_Noreturn void not_written(int line);

/* 6.2 */
int64_t packed_size(int64_t in, int64_t out, int64_t width, int64_t inner);
void pack(const float *weight, float *panels, int64_t in, int64_t out, int64_t width, int64_t inner);
void multiply(const float *x, const float *panels, float *y, int64_t in, int64_t out);

/* 6.3 */
void grouped(const float *x, const float *panels, float *y, int64_t n, int64_t in, int64_t out);

/* 6.4 */
enum { STORE, ADD, GELU };
void fused(const float *x, const float *panels, const float *bias, float *y,
           int64_t n, int64_t in, int64_t out, int64_t finish);

/* 6.5 */
typedef struct { _Alignas(64) int64_t taken; } Counter; /* alone in a line of the cache */
typedef struct {
    const float *x, *panels, *bias; /* [n][in], the weights as panels, [out] */
    float *y;                       /* [n][out] */
    int64_t n, in, out;
} Layer;
int64_t take(Counter *counters, int64_t rank, int64_t size, int64_t num_panels);
void work_on(const Layer *layer, Counter *counters, int64_t rank, int64_t size);
void one_panel(const Layer *layer, int64_t panel); /* given: y += x W^T + bias for the columns of a panel */
#endif
