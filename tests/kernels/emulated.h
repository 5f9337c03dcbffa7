/* Instructions that few CPUs have, in plain C, for `cc -include emulated.h`: the products of bfloat16s and of int8 of
 * AVX-512, and AMX's tiles. It shows whether the kernels use them rightly, not how fast they are. Source of what they
 * compute: Intel's Software Developer's Manual, vol. 2, VDPBF16PS, VPDPBUSD, TDPBF16PS and TDPBSSD. */
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#ifdef __AVX512F__ /* then it declares tiles of its own, which this CPU may not have: the names mean others from here on */
#include <immintrin.h>
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig emulated_loadconfig
#define _tile_release emulated_release
#define _tile_loadd emulated_loadd
#define _tile_stored emulated_stored
#define _tile_zero emulated_zero
#define _tile_dpbf16ps emulated_dpbf16ps
#define _tile_dpbssd emulated_dpbssd
#endif

/* Products of bfloat16s take a subnormal number, one below 2^-126, as a zero of its sign, and make such a zero of a
 * subnormal result, whatever the thread's MXCSR says. */
static inline float emulated_normal(float x) { return fabsf(x) < 0x1p-126f ? 0 * x : x; }
static inline float emulated_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return emulated_normal(x);
}

/* sum += odd products, then sum += even ones. */
#define HAS_DOT
#define DOT(sum, pairs, w) \
    do { \
        for (int lane = 0; lane < LANES; lane++) { \
            float *at = (float *)&(sum) + lane; \
            *at = emulated_normal(fmaf(emulated_float((uint32_t)(pairs)[lane] & 0xffff0000), \
                                       emulated_float((uint32_t)(w)[lane] & 0xffff0000), emulated_normal(*at))); \
            *at = emulated_normal(fmaf(emulated_float((uint32_t)(pairs)[lane] << 16), \
                                       emulated_float((uint32_t)(w)[lane] << 16), *at)); \
        } \
    } while (0)

/* sum += four products: of the weight's bytes, which have no sign, and the row's, which have. */
#define HAS_DOT_INT8
#define OFFSET 128
#define DOT_INT8S(sum, fours, w) \
    do { \
        for (int lane = 0; lane < LANES; lane++) { \
            ivec whole = (ivec)(sum); \
            for (int shift = 0; shift < 32; shift += 8) \
                whole[lane] += (uint8_t)((uint32_t)(w)[lane] >> shift) * (int8_t)((uint32_t)(fours)[lane] >> shift); \
            (sum) = (vec)whole; \
        } \
    } while (0)

/* Tiles: 16 rows of 64 bytes each. */
#define __AMX_BF16__ 1
#define __AMX_INT8__ 1
#define SYS_arch_prctl 0
#define syscall(...) 0
static _Thread_local uint32_t emulated_tiles[8][16][16];
__attribute__((weak)) int64_t emulated_products; /* of tiles; the same for all files */

static inline void _tile_loadconfig(const void *shape) { (void)shape; }
static inline void _tile_release(void) { memset(emulated_tiles, 0xff, sizeof(emulated_tiles)); }
static inline void _tile_zero(int t) { memset(emulated_tiles[t], 0, sizeof(emulated_tiles[t])); }
static inline void _tile_loadd(int t, const void *from, int64_t stride) {
    for (int r = 0; r < 16; r++) memcpy(emulated_tiles[t][r], (const char *)from + r * stride, 64);
}
static inline void _tile_stored(int t, void *to, int64_t stride) {
    for (int r = 0; r < 16; r++) memcpy((char *)to + r * stride, emulated_tiles[t][r], 64);
}
static inline void _tile_dpbf16ps(int to, int a, int b) {
    float x[2][16][16], y[2][16][16]; /* the even ones, then the odd ones */
    for (int r = 0; r < 16; r++)
        for (int c = 0; c < 16; c++) {
            const uint32_t of_a = emulated_tiles[a][r][c], of_b = emulated_tiles[b][r][c];
            x[0][r][c] = emulated_float(of_a << 16), x[1][r][c] = emulated_float(of_a & 0xffff0000);
            y[0][r][c] = emulated_float(of_b << 16), y[1][r][c] = emulated_float(of_b & 0xffff0000);
        }
    emulated_products++;
    for (int r = 0; r < 16; r++)
        for (int c = 0; c < 16; c++) {
            float even = 0, odd = 0, sum = emulated_float(emulated_tiles[to][r][c]);
            for (int k = 0; k < 16; k++) {
                even = emulated_normal(fmaf(x[0][r][k], y[0][k][c], even));
                odd = emulated_normal(fmaf(x[1][r][k], y[1][k][c], odd));
            }
            sum = emulated_normal(sum + emulated_normal(even + odd));
            memcpy(&emulated_tiles[to][r][c], &sum, 4);
        }
}
static inline void _tile_dpbssd(int to, int a, int b) {
    for (int r = 0; r < 16; r++)
        for (int c = 0; c < 16; c++)
            for (int k = 0; k < 64; k++) {
                const int8_t x = (int8_t)(emulated_tiles[a][r][k / 4] >> 8 * (k % 4));
                emulated_tiles[to][r][c] += (uint32_t)(x * (int8_t)(emulated_tiles[b][k / 4][c] >> 8 * (k % 4)));
            }
}
