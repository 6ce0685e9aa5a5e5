/* The products in plain C: for CPUs without AVX2, and the yardstick of the others. */
#include "float_rows.h"

static void w8a8(const uint8_t *restrict weights, const uint8_t *codes, ptrdiff_t steps, int blocks, int32_t *restrict sums) {
    const int8_t *w = (const int8_t *)weights, *a = (const int8_t *)codes;
    int rows = blocks * BLOCK;
    memset(sums, 0, (size_t)rows * 4);
    for (ptrdiff_t s = 0; s < steps; s++, a += 4)
        for (int r = 0; r < rows; r++, w += 4) sums[r] += w[0] * a[0] + w[1] * a[1] + w[2] * a[2] + w[3] * a[3];
}

static void w8a16(const uint8_t *restrict weights, const int16_t *a, ptrdiff_t steps, int blocks, int32_t *restrict sums) {
    const int8_t *w = (const int8_t *)weights;
    int rows = blocks * BLOCK;
    memset(sums, 0, (size_t)rows * 4);
    for (ptrdiff_t s = 0; s < steps; s++, a += 4)
        for (int r = 0; r < rows; r++, w += 4) sums[r] += w[0] * a[0] + w[1] * a[1] + w[2] * a[2] + w[3] * a[3];
}

static void w4a8(const uint8_t *w, const uint8_t *codes, ptrdiff_t steps, int blocks, int32_t *restrict sums) {
    const int8_t *a = (const int8_t *)codes;
    int rows = blocks * BLOCK;
    memset(sums, 0, (size_t)rows * 4);
    for (ptrdiff_t s = 0; s < steps; s++, a += 8)
        for (int r = 0; r < rows; r++, w += 4)
            for (int j = 0; j < 4; j++) sums[r] += (w[j] & 15) * a[j] + (w[j] >> 4) * a[4 + j];
}

static void w3a8(const uint8_t *w, const uint8_t *codes, ptrdiff_t steps, int blocks, int32_t *restrict sums) {
    const int8_t *a = (const int8_t *)codes;
    int rows = blocks * BLOCK;
    memset(sums, 0, (size_t)rows * 4);
    for (ptrdiff_t s = 0; s < steps; s++, w += 8 * rows, a += 32)
        for (int r = 0; r < rows; r++, w += 4)
            for (int j = 0; j < 4; j++) {
                int t = w[j], u = w[4 * rows + j], v = w[8 * rows + j];
                sums[r] += (t & 7) * a[j] + (t >> 3 & 7) * a[4 + j] + (u & 7) * a[8 + j] + (u >> 3 & 7) * a[12 + j] +
                           (v & 7) * a[16 + j] + (v >> 3 & 7) * a[20 + j] + ((t >> 5 & 6) | (v >> 6 & 1)) * a[24 + j] +
                           ((u >> 5 & 6) | v >> 7) * a[28 + j];
            }
}

static void w2a8(const uint8_t *w, const uint8_t *codes, ptrdiff_t steps, int blocks, int32_t *restrict sums) {
    const int8_t *a = (const int8_t *)codes;
    int rows = blocks * BLOCK;
    memset(sums, 0, (size_t)rows * 4);
    for (ptrdiff_t s = 0; s < steps; s++, a += 16)
        for (int r = 0; r < rows; r++, w += 4)
            for (int j = 0; j < 4; j++)
                sums[r] += (w[j] & 3) * a[j] + (w[j] >> 2 & 3) * a[4 + j] + (w[j] >> 4 & 3) * a[8 + j] +
                           (w[j] >> 6) * a[12 + j];
}

static void w8u8(const uint8_t *restrict weights, const uint8_t *next, const uint16_t *columns, const uint8_t *codes,
                 ptrdiff_t count, int blocks, int32_t *restrict sums) {
    (void)next;
    int rows = blocks * BLOCK;
    memset(sums, 0, (size_t)rows * 4);
    for (ptrdiff_t s = 0; s < count; s++) {
        const int8_t *w = (const int8_t *)weights + (ptrdiff_t)columns[s] * rows;
        for (int r = 0; r < rows; r++) sums[r] += w[r] * codes[s];
    }
}

static void fp32(const uint8_t *restrict weights, const uint8_t *next, const uint16_t *columns, const float *restrict x,
                 ptrdiff_t count, int blocks, float *restrict sums) {
    (void)next;
    int rows = blocks * BLOCK;
    memset(sums, 0, (size_t)rows * 4);
    for (ptrdiff_t s = 0; s < count; s++) {
        const float *w = (const float *)weights + (ptrdiff_t)columns[s] * rows;
        for (int r = 0; r < rows; r++) sums[r] += w[r] * x[s];
    }
}

static float from_half(uint16_t half) {
    uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13, sign = (uint32_t)(half & 0x8000) << 16;
    float value;
    memcpy(&value, &magnitude, 4);
    value *= 5.192296858534828e33f; /* 2^112: the difference of the exponents' biases, subnormals included */
    memcpy(&magnitude, &value, 4);
    magnitude |= sign;
    memcpy(&value, &magnitude, 4);
    return value;
}

static void fp16(const uint8_t *restrict weights, const uint8_t *next, const uint16_t *columns, const float *restrict x,
                 ptrdiff_t count, int blocks, float *restrict sums) {
    (void)next;
    int rows = blocks * BLOCK;
    memset(sums, 0, (size_t)rows * 4);
    for (ptrdiff_t s = 0; s < count; s++) {
        const uint16_t *w = (const uint16_t *)weights + (ptrdiff_t)columns[s] * rows;
        for (int r = 0; r < rows; r++) sums[r] += from_half(w[r]) * x[s];
    }
}

static uint64_t read_lines(const uint8_t *data, ptrdiff_t lines) {
    uint64_t sum[8] = {0};
    for (ptrdiff_t i = 0; i < lines; i++)
        for (int j = 0; j < 8; j++) {
            uint64_t word;
            memcpy(&word, data + i * 64 + j * 8, 8);
            sum[j] += word;
        }
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

/* A batch: SSE2's pmaddwd, which every 64-bit x86 has and no compiler finds here; else plain C. */
#ifdef __SSE2__
#define VECTOR __m128i
#define V_LANES 4
#define V_ZERO _mm_setzero_si128()
#define V_LOAD(p) _mm_loadu_si128((const void *)(p))
#define V_STORE(p, v) _mm_storeu_si128((void *)(p), v)
#define V_ADD _mm_add_epi32
#define DOT_WORDS(acc, a, w) _mm_add_epi32(acc, _mm_madd_epi16(a, w))
#define F_VECTOR __m128
#define F_ZERO _mm_setzero_ps()
#define F_PRODUCT(acc, a, w) _mm_add_ps(acc, _mm_mul_ps(a, w))
#define TILE_VECTORS 2

INLINE __m128i V_FOUR(const uint8_t *p) {
    int32_t word;
    memcpy(&word, p, 4);
    return _mm_set1_epi32(word);
}
#include "batch_tiles.h"
#else
static void multiply(enum batch_mode mode, const uint8_t *panel, int blocks, const uint8_t *codes, ptrdiff_t stride,
                     ptrdiff_t steps, int n, int32_t *sums, int add, const uint8_t *ahead) {
    (void)mode, (void)ahead;
    int rows = blocks * BLOCK;
    const int16_t *w = (const int16_t *)(const void *)panel;
    for (int o = 0; o < n; o++, sums += PANEL, codes += stride) {
        const int16_t *a = (const int16_t *)(const void *)codes;
        if (!add) memset(sums, 0, (size_t)rows * 4);
        for (ptrdiff_t s = 0; s < steps; s++)
            for (int r = 0; r < rows; r++)
                sums[r] += w[(s * rows + r) * 2] * a[2 * s] + w[(s * rows + r) * 2 + 1] * a[2 * s + 1];
    }
}
#define PEAKS NULL, NULL
#endif

#include "batch_rows.h"

const kernels portable_kernels = KERNELS("portable", -128, read_lines);
