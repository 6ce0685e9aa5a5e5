/* Everything around the products, in plain C that each kernel file compiles for its own instruction set.
 *
 * Loops are written for the compiler's vectorizer. reference.py has the same operations in the same order; a change here
 * is a change there.
 */
#include <math.h>
#include <string.h>

#include "kernels.h"

#define TINY 7.888609052210118e-31f /* 2^-100: below it a tensor counts as zero, so that limit / absmax is finite */
#ifndef PREFETCH_BYTES
#define PREFETCH_BYTES 8192
#endif
#define INLINE static inline __attribute__((always_inline))

/* Half to even for |v| < 2^22: in [2^23, 2^24) floats are integers. */
INLINE float round_even(float v) { return (v + 12582912.0f) - 12582912.0f; }

static uint32_t absmax_bits(const float *x, ptrdiff_t n) {
    int32_t highest = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, x + i, 4);
        bits &= 0x7fffffff;
        highest = bits > highest ? bits : highest;
    }
    return (uint32_t)highest;
}

static int32_t quantize8(const float *x, ptrdiff_t n, float inverse, int offset, uint8_t *codes) {
    int32_t sum = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        int32_t code = (int32_t)round_even(x[i] * inverse);
        sum += code;
        codes[i] = (uint8_t)(code + offset);
    }
    return sum;
}

static int32_t quantize16(const float *x, ptrdiff_t n, float inverse, int16_t *codes) {
    int32_t sum = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        int32_t code = (int32_t)round_even(x[i] * inverse);
        sum += code;
        codes[i] = (int16_t)code;
    }
    return sum;
}

static void round_input(float *x, ptrdiff_t n, float inverse, float scale) {
    for (ptrdiff_t i = 0; i < n; i++) x[i] = round_even(x[i] * inverse) * scale;
}

/* Fill a list up to a multiple of 8 with column 0 times 0. */
#define FILL_UP(count, columns, values)                                                                        \
    for (; (count) % 8; (count)++) (columns)[count] = 0, (values)[count] = 0

/* Prefetch `n` listed columns of `size` bytes from some way ahead, on into the next panel. */
INLINE void prefetch_columns(const uint8_t *weights, const uint8_t *next, const uint16_t *columns, ptrdiff_t at,
                             ptrdiff_t count, ptrdiff_t size, const int n) {
    at += (PREFETCH_BYTES / size) & ~(ptrdiff_t)7;
    if (at >= count) at -= count, weights = next;
    if (at >= count) return;
    for (int i = 0; i < n; i++)
        for (ptrdiff_t line = 0; line < size; line += 64) __builtin_prefetch(weights + columns[at + i] * size + line);
}

#ifndef HAS_LISTS
static ptrdiff_t list_codes(const uint8_t *codes, ptrdiff_t n, uint16_t *columns, uint8_t *values) {
    ptrdiff_t count = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        columns[count] = (uint16_t)i;
        values[count] = codes[i];
        count += codes[i] != 0;
    }
    FILL_UP(count, columns, values);
    return count;
}

static ptrdiff_t list_floats(const float *x, ptrdiff_t n, uint16_t *columns, float *values) {
    ptrdiff_t count = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        columns[count] = (uint16_t)i;
        values[count] = x[i];
        count += x[i] != 0.0f;
    }
    FILL_UP(count, columns, values);
    return count;
}
#endif

static void scale_sums(const int32_t *restrict sums, const float *restrict scales, const float *restrict residuals,
                       const float *restrict bias, float code_sum, float activation_scale, ptrdiff_t n,
                       float *restrict y) {
    for (ptrdiff_t i = 0; i < n; i++)
        y[i] = ((float)sums[i] * scales[i] + code_sum * residuals[i]) * activation_scale + bias[i];
}

static void add_group(const int32_t *restrict sums, const float *restrict scales, ptrdiff_t n, float *restrict total) {
    for (ptrdiff_t i = 0; i < n; i++) total[i] += (float)sums[i] * scales[i];
}

static void scale_total(const float *restrict total, const float *restrict residuals, const float *restrict bias,
                        float code_sum, float activation_scale, ptrdiff_t n, float *restrict y) {
    for (ptrdiff_t i = 0; i < n; i++) y[i] = (total[i] + code_sum * residuals[i]) * activation_scale + bias[i];
}

static double pairwise8(const double *s) { return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])); }

static void layer_norm(float *y, ptrdiff_t n, const float *scale, const float *offset, double eps) {
    double lanes[8] = {0}, squares[8] = {0};
    for (ptrdiff_t i = 0; i < n; i++) lanes[i & 7] += (double)y[i];
    double mean = pairwise8(lanes) / (double)n;
    for (ptrdiff_t i = 0; i < n; i++) {
        double d = (double)y[i] - mean;
        squares[i & 7] += d * d;
    }
    float inverse = (float)(1.0 / sqrt(pairwise8(squares) / (double)n + eps)), center = (float)mean;
    for (ptrdiff_t i = 0; i < n; i++) y[i] = (y[i] - center) * inverse * scale[i] + offset[i];
}

INLINE float at_most(float v, float limit) { return v < limit ? v : limit; }
INLINE float at_least(float v, float limit) { return v > limit ? v : limit; }

INLINE float exp_f32(float x) {
    x = at_most(at_least(x, -87.0f), 88.0f);
    float n = round_even(x * 1.44269504f);
    float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = (p * (r * r) + r) + 1.0f;
    int32_t bits = ((int32_t)n + 127) * (1 << 23);
    float power;
    memcpy(&power, &bits, 4);
    return p * power;
}

INLINE float tanh_f32(float x) {
    x = at_most(at_least(x, -7.90531110763549805f), 7.90531110763549805f);
    float s = x * x;
    float p = s * -2.76076847742355e-16f + 2.00018790482477e-13f;
    p = p * s + -8.60467152213735e-11f;
    p = p * s + 5.12229709037114e-08f;
    p = p * s + 1.48572235717979e-05f;
    p = p * s + 6.37261928875436e-04f;
    p = (p * s + 4.89352455891786e-03f) * x;
    float q = s * 1.19825839466702e-06f + 1.18534705686654e-04f;
    q = q * s + 2.26843463243900e-03f;
    return p / (q * s + 4.89352518554385e-03f);
}

static void activate(float *restrict y, ptrdiff_t n, enum activation activation) {
    if (activation == RELU)
        for (ptrdiff_t i = 0; i < n; i++) y[i] = y[i] > 0.0f ? y[i] : 0.0f;
    else if (activation == TANH)
        for (ptrdiff_t i = 0; i < n; i++) y[i] = tanh_f32(y[i]);
    else if (activation == ELU)
        for (ptrdiff_t i = 0; i < n; i++) {
            float below = exp_f32(at_most(y[i], 0.0f)) - 1.0f;
            y[i] = y[i] > 0.0f ? y[i] : below;
        }
    else if (activation == SILU)
        for (ptrdiff_t i = 0; i < n; i++) y[i] = y[i] / (1.0f + exp_f32(-y[i]));
}

static void normalize(float *restrict x, ptrdiff_t n, const double *restrict mean, const double *restrict inverse_std,
                      float clip) {
    for (ptrdiff_t i = 0; i < n; i++)
        x[i] = at_most(at_least((float)(((double)x[i] - mean[i]) * inverse_std[i]), -clip), clip);
}

/* ---- whole buffers ---- */

static void checksum(const uint8_t *data, ptrdiff_t lines, uint64_t sums[16]) {
    uint64_t a[8] = {0}, b[8] = {0};
    for (ptrdiff_t i = 0; i < lines; i++)
        for (int j = 0; j < 8; j++) {
            uint64_t word;
            memcpy(&word, data + i * 64 + j * 8, 8);
            a[j] += word;
            b[j] += a[j];
        }
    memcpy(sums, a, sizeof a);
    memcpy(sums + 8, b, sizeof b);
}

#include "encode.h"
#include "convert.h"

/* In the order of the kinds; see kernels.h. Below `from` observations one after the other takes less: behind a ReLU
 * it leaves half the columns out. */
#ifdef INTERLEAVE
#define BATCH_MODES {NO_BATCH, NO_BATCH, BYTES, HALVES, LEVELS, LEVELS, LEVELS, INTERLEAVED, LEVELS}
#define BATCHED_FROM {0, 0, 4, 4, 4, 4, 4, 6, 4}
#define ORDER_ROWS order_rows
#elif defined(BYTE_PRODUCTS)
#define BATCH_MODES {NO_BATCH, NO_BATCH, BYTES, HALVES, LEVELS, LEVELS, LEVELS, BYTES, LEVELS}
#define BATCHED_FROM {0, 0, 4, 4, 4, 4, 4, 6, 4}
#elif defined(LEVEL_PRODUCTS)
#define BATCH_MODES {NO_BATCH, NO_BATCH, WORDS, WORDS, LEVELS, LEVELS, LEVELS, WORDS, LEVELS}
#define BATCHED_FROM {0, 0, 8, 8, 4, 4, 4, 16, 4}
#else
#define BATCH_MODES {NO_BATCH, NO_BATCH, WORDS, WORDS, WORDS, WORDS, WORDS, WORDS, WORDS}
#define BATCHED_FROM {0, 0, 4, 4, 4, 4, 4, 4, 4}
#endif
#ifndef ORDER_ROWS
#define ORDER_ROWS NULL
#endif

#define KERNELS(isa, signed_offset, read_lines)                                                                \
    {.name = isa, .byte_offset = signed_offset, .modes = BATCH_MODES, .batched_from = BATCHED_FROM, .unpack = unpack, .multiply = multiply,     \
     .finish = finish, .quantize_halves = QUANTIZE_HALVES, .order_rows = ORDER_ROWS, .peak = {PEAKS}, .w8a8 = w8a8, .w8a16 = w8a16, .w4a8 = w4a8, .w3a8 = w3a8, .w2a8 = w2a8,         \
     .w8u8 = w8u8, .list_codes = list_codes, .list_floats = list_floats, .fp32 = fp32, .fp16 = fp16, .absmax_bits = absmax_bits, .quantize8 = quantize8, .quantize16 = quantize16,    \
     .scale_sums = scale_sums, .add_group = add_group, .scale_total = scale_total, .layer_norm = layer_norm,      \
     .activate = activate, .normalize = normalize, .encode_panel = encode_panel, .decode_strip = decode_strip, .encode_strip = encode_strip, .checksum = checksum,            \
     .round_input = round_input, .round_weights = round_weights, \
     .read = read_lines}
