"""The C99 text that exported policies share: the arithmetic of inference/arithmetic.py and backends/reference.py.

NAME stands for the policy's. Basic operations, in the order of the reference, so that every machine with IEEE floats
gives the same bits; the guards refuse the builds that would not.
"""

GUARDS = """\
#include <math.h>

#if defined(__FAST_MATH__)
#error "NAME computes integer codes with exact float steps: build without -ffast-math"
#endif
#if defined(__FLT_EVAL_METHOD__) && (__FLT_EVAL_METHOD__ == 1 || __FLT_EVAL_METHOD__ == 2)
#error "NAME needs floats that are computed as floats: on 32-bit x86 add -msse2 -mfpmath=sse"
#endif
/* A product and a sum must not become one operation. gcc does that in its own mode (gnu99), and up to version 12 even
   where it was told not to, when it packs straight code into vectors. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off", "no-tree-slp-vectorize")
#endif

#define NAME_LARGEST 3.402823466e+38f /* what is not below it is infinite or not a number */
"""

END = """
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif
"""

QUANTIZE = """\
/* Turn n floats into integer codes with one scale, half to even: a step that was learned, or, if that is 0, the one of
 * which the largest float is the last; return 0 if one is not finite. */
static int NAME_quantize(const float *x, int n, float limit, float step, int16_t *codes, float *scale, int32_t *sum) {
    float most = limit * step, largest = 0.0f, steps = 0.0f;
    int32_t total = 0;
    int i;
    for (i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        if (!(a <= NAME_LARGEST)) return 0;
        if (a > largest) largest = a;
    }
    if (step > 0.0f) steps = 1.0f / step;
    else if (largest < 7.88860905e-31f) largest = 0.0f; /* 2^-100 */
    else steps = limit / largest;
    for (i = 0; i < n; i++) {
        float a = step > 0.0f && x[i] > most ? most : step > 0.0f && x[i] < -most ? -most : x[i];
        int32_t code = (int32_t)((a * steps + 12582912.0f) - 12582912.0f); /* 1.5 * 2^23 leaves no fraction */
        codes[i] = (int16_t)code;
        total += code;
    }
PAD    *scale = step > 0.0f ? step : largest / limit;
    *sum = total;
    return 1;
}
"""

PAD = """\
    for (; i % 8; i++) codes[i] = 0; /* the last byte of a row may hold fewer columns */
"""

# The sum of one row's products; `w` is the row.
INTEGER_SUMS = {
    8: """\
        for (j = 0; j < n; j++) s += (int32_t)w[j] * codes[j];
        w += n;
""",
    4: """\
        for (j = 0; j < n / 2; j++) s += (int32_t)(w[j] & 15) * codes[j] + (int32_t)(w[j] >> 4) * codes[n / 2 + j];
        w += n / 2;
        s = 2 * s - 15 * total;
""",
    2: """\
        for (j = 0; j < n / 4; j++)
            s += (int32_t)(w[j] & 3) * codes[j] + (int32_t)((w[j] >> 2) & 3) * codes[n / 4 + j] +
                 (int32_t)((w[j] >> 4) & 3) * codes[n / 2 + j] + (int32_t)(w[j] >> 6) * codes[3 * (n / 4) + j];
        w += n / 4;
        s = 2 * s - 3 * total;
""",
    3: """\
        for (j = 0; j < n / 4; j++)
            s += (int32_t)(w[j] & 3) * codes[j] + (int32_t)((w[j] >> 2) & 3) * codes[n / 4 + j] +
                 (int32_t)((w[j] >> 4) & 3) * codes[n / 2 + j] + (int32_t)(w[j] >> 6) * codes[3 * (n / 4) + j];
        w += n / 4;
        for (int k = 0; k < 8; k++)
            for (j = 0; j < n / 8; j++)
                if ((w[j] >> k) & 1) s += 4 * (int32_t)codes[k * (n / 8) + j];
        w += n / 8;
        s = 2 * s - 7 * total;
""",
}

INTEGER_LAYER = """\
/* One layer: rows of COMMENT; for each output a scale, a residual and a bias. */
static int NAME_layerBITS(const TYPE *w, const float *row, int columns, int outputs, float limit, float step,
                       const float *x, float *y, int16_t *codes) {
    float scale;
    int32_t total;
    int i, j, n = PADDED;
    if (!NAME_quantize(x, columns, limit, step, codes, &scale, &total)) return 0;
    for (i = 0; i < outputs; i++, row += 3) {
        int32_t s = 0;
SUMS        y[i] = ((float)s * row[0] + (float)total * row[1]) * scale + row[2];
    }
    return 1;
}
"""

FLOAT_LAYER = """\
/* One layer: the weights input by input, so that outputs are computed side by side. */
static void NAME_layer(const TYPE *w, const float *bias, int columns, int outputs, const float *x, float *y) {
    int i, j;
    for (i = 0; i < outputs; i++) y[i] = 0.0f;
    for (j = 0; j < columns; j++, w += outputs)
        for (i = 0; i < outputs; i++) y[i] += VALUE * x[j];
    for (i = 0; i < outputs; i++) y[i] += bias[i];
}
"""

HALF = """\
/* Read a 16-bit float. */
static float NAME_half(uint16_t h) {
    union {
        uint32_t bits;
        float value;
    } u;
    uint32_t exponent = (h >> 10) & 31u, fraction = h & 1023u, sign = (uint32_t)(h & 0x8000u) << 16;
    if (exponent == 0) { /* zero and subnormal: fraction * 2^-24 */
        float small = (float)fraction * 5.9604644775390625e-8f;
        return sign ? -small : small;
    }
    u.bits = sign | (exponent + 112u) << 23 | fraction << 13;
    return u.value;
}
"""

EXP = """\
static float NAME_exp(float x) {
    union {
        uint32_t bits;
        float value;
    } power;
    float n, r, p;
    if (x < -87.0f) x = -87.0f;
    if (x > 88.0f) x = 88.0f;
    n = (x * 1.44269502f + 12582912.0f) - 12582912.0f;
    r = (x - n * 0.693359375f) - n * -2.12194442e-4f;
    p = 1.98756912e-4f * r + 1.39819994e-3f;
    p = p * r + 8.33345205e-3f;
    p = p * r + 4.16657962e-2f;
    p = p * r + 1.66666657e-1f;
    p = p * r + 0.5f;
    p = (p * (r * r) + r) + 1.0f;
    power.bits = (uint32_t)((int32_t)n + 127) << 23;
    return p * power.value;
}
"""

TANH = """\
static float NAME_tanh(float x) {
    float s, p, q;
    if (x < -7.90531111f) x = -7.90531111f;
    if (x > 7.90531111f) x = 7.90531111f;
    s = x * x;
    p = s * -2.76076837e-16f + 2.00018794e-13f;
    p = p * s - 8.60467184e-11f;
    p = p * s + 5.12229725e-08f;
    p = p * s + 1.48572235e-05f;
    p = p * s + 0.000637261954f;
    p = (p * s + 0.00489352457f) * x;
    q = s * 1.19825836e-06f + 0.000118534706f;
    q = q * s + 0.00226843474f;
    return p / (q * s + 0.00489352504f);
}
"""

ACTIVATIONS = {
    "relu": "y[i] > 0.0f ? y[i] : 0.0f",
    "tanh": "NAME_tanh(y[i])",
    "elu": "y[i] > 0.0f ? y[i] : NAME_exp(y[i]) - 1.0f",
    "silu": "y[i] / (1.0f + NAME_exp(-y[i]))",
}

ACTIVATE = """\
static void NAME_KIND_all(float *y, int n) {
    int i;
    for (i = 0; i < n; i++) y[i] = VALUE;
}
"""

LAYER_NORM = """\
static double NAME_lane_sum(const float *y, int n, double mean, int squares) {
    double lanes[8] = {0.0};
    int i;
    for (i = 0; i < n; i++) {
        double d = (double)y[i] - mean;
        lanes[i % 8] += squares ? d * d : d;
    }
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

static void NAME_layer_norm(float *y, const float *scale, const float *offset, int n, double eps) {
    double mean = NAME_lane_sum(y, n, 0.0, 0) / n;
    double variance = NAME_lane_sum(y, n, mean, 1) / n;
    float inverse = (float)(1.0 / sqrt(variance + eps)), middle = (float)mean;
    int i;
    for (i = 0; i < n; i++) y[i] = (y[i] - middle) * inverse * scale[i] + offset[i];
}
"""
