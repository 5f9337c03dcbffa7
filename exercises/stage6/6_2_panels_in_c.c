/* Exercise 6.2, panels in C. Instructions: 6_2_panels_in_c.md. */
#include "linear.h"

/* How many numbers `pack` writes. */
int64_t packed_size(int64_t in, int64_t out, int64_t width, int64_t inner) {
    NOT_WRITTEN;
}

/* The panels of a matrix. [out][in] -> [panels][steps][width][inner] */
void pack(const float *weight, float *panels, int64_t in, int64_t out, int64_t width, int64_t inner) {
    NOT_WRITTEN;
}

/* y = W x for one token, with panels of width PANEL and inner 1. [in] -> [out] */
void multiply(const float *x, const float *panels, float *y, int64_t in, int64_t out) {
    NOT_WRITTEN;
}
