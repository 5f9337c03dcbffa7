/* A solution of exercise 6.2. */
#include "linear.h"

static int64_t whole(int64_t n, int64_t size) { return (n + size - 1) / size; }

/* How many numbers `pack` writes. */
int64_t packed_size(int64_t in, int64_t out, int64_t width, int64_t inner) {
    return whole(out, width) * whole(in, inner) * width * inner;
}

/* The panels of a matrix. [out][in] -> [panels][steps][width][inner] */
void pack(const float *weight, float *panels, int64_t in, int64_t out, int64_t width, int64_t inner) {
    for (int64_t first = 0; first < out; first += width)
        for (int64_t step = 0; step < in; step += inner)
            for (int64_t o = first; o < first + width; o++)
                for (int64_t i = step; i < step + inner; i++)
                    *panels++ = o < out && i < in ? weight[o * in + i] : 0;
}

/* y = W x for one token, with panels of width PANEL and inner 1. [in] -> [out] */
void multiply(const float *x, const float *panels, float *y, int64_t in, int64_t out) {
    for (int64_t o = 0; o < out; o += PANEL) {
        const float *panel = panels + o * in;
        float sum[PANEL] = {0};
        for (int64_t i = 0; i < in; i++)
            for (int c = 0; c < PANEL; c++) sum[c] += x[i] * panel[i * PANEL + c];
        for (int c = 0; c < PANEL && o + c < out; c++) y[o + c] = sum[c];
    }
}
