/* From float rows to tiles; included by float_rows.h. tiles.py has the same arithmetic. */
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { LANES = 32 };

/* A step of w4, w3 or w2 has `parts` runs of four columns, which share a row's `words`, one byte a column of a run. */
#define PARTS(bits) ((bits) == 3 ? 8 : 8 / (bits))
#define WORDS_OF(bits) ((bits) == 3 ? 3 : 1)

/* Levels of a step, a run in a uint32, into a row's words; layout.py says where the runs of w3 lie. */
INLINE void join_levels(const uint32_t *runs, uint32_t *words, const int bits) {
    if (bits == 3) {
        for (int i = 0; i < 3; i++) words[i] = runs[2 * i] | runs[2 * i + 1] << 3;
        for (int i = 0; i < 2; i++) {
            words[i] |= (runs[6 + i] & 0x06060606) << 5;
            words[2] |= (runs[6 + i] & 0x01010101) << (6 + i);
        }
        return;
    }
    words[0] = 0;
    for (int p = 0; p < PARTS(bits); p++) words[0] |= runs[p] << bits * p;
}

/* The other way: run `p` of a row's words, which lie `stride` bytes apart. */
INLINE uint32_t four_levels(const uint8_t *tile, ptrdiff_t stride, int p, const int bits) {
    uint32_t word, last;
    memcpy(&word, tile + (bits != 3 ? 0 : p < 6 ? p / 2 : p - 6) * stride, 4);
    if (bits != 3) return word >> bits * p & 0x01010101u * ((1u << bits) - 1);
    if (p < 6) return word >> 3 * (p % 2) & 0x07070707;
    memcpy(&last, tile + 2 * stride, 4);
    return (word >> 5 & 0x06060606) | (last >> p & 0x01010101);
}

/* A row's rounding errors are summed in 32 lanes, each in order, then by halves. */
typedef struct {
    float lanes[LANES];
} rests;

static float total_of(rests r) {
    for (int half = LANES / 2; half; half /= 2)
        for (int j = 0; j < half; j++) r.lanes[j] += r.lanes[j + half];
    return r.lanes[0];
}

static float absmax_of(const float *x, ptrdiff_t n) {
    uint32_t bits = absmax_bits(x, n);
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static ptrdiff_t first_beyond(const float *x, ptrdiff_t n, float limit) {
    for (ptrdiff_t i = 0; i < n; i++)
        if (!(fabsf(x[i]) < limit)) return i;
    return -1;
}

INLINE int32_t quantize_lanes(const float *restrict x, float inverse, uint8_t *restrict codes, rests *restrict left) {
    int32_t sum = 0;
    for (int j = 0; j < LANES; j++) {
        float steps = x[j] * inverse, code = round_even(steps);
        left->lanes[j] += steps - code;
        int32_t integer = (int32_t)code;
        sum += integer;
        codes[j] = (uint8_t)integer;
    }
    return sum;
}

/* Codes -127..127, half to even; write whole lanes, zeros behind the row. Return the scale. */
static float quantize_row(const float *x, ptrdiff_t n, uint8_t *codes, float *left, int32_t *sum) {
    float absmax = absmax_of(x, n), inverse = absmax < TINY ? 0.0f : 127.0f / absmax, tail[LANES] = {0};
    ptrdiff_t i = 0;
    rests r = {{0}};
    *sum = 0;
    for (; i + LANES <= n; i += LANES) *sum += quantize_lanes(x + i, inverse, codes + i, &r);
    if (i < n) {
        memcpy(tail, x + i, (size_t)(n - i) * 4);
        *sum += quantize_lanes(tail, inverse, codes + i, &r);
    }
    *left = total_of(r);
    return absmax < TINY ? 0.0f : absmax / 127.0f;
}

INLINE void half_step_lanes(const float *restrict x, int n, float inverse, float half, uint8_t *restrict codes,
                            rests *restrict left) {
    float highest = 2.0f * half - 1.0f, center = half - 0.5f;
    for (int j = 0; j < n; j++) {
        float steps = x[j] * inverse;
        int32_t code = (int32_t)at_most(at_least(steps + half, 0.0f), highest);
        left->lanes[j] += steps - ((float)code - center);
        codes[j] = (uint8_t)code;
    }
}

/* Codes 0..levels-1 that stand for (2 code - levels + 1) * scale. Return the scale. */
static float quantize_half_steps(const float *x, ptrdiff_t n, int levels, uint8_t *codes, float *left) {
    float absmax = absmax_of(x, n), half = (float)(levels / 2);
    rests r = {{0}};
    *left = 0.0f;
    if (absmax < TINY) {
        memset(codes, 0, (size_t)n);
        return 0.0f;
    }
    ptrdiff_t i = 0;
    for (; i + LANES <= n; i += LANES) half_step_lanes(x + i, LANES, half / absmax, half, codes + i, &r);
    half_step_lanes(x + i, (int)(n - i), half / absmax, half, codes + i, &r);
    *left = total_of(r);
    return absmax / (float)levels;
}

/* Codes on a learned step, clamped to their range: 0..levels-1, or -127..127 where there are no levels. Return the scale. */
static float quantize_by_step(const float *x, ptrdiff_t n, float step, int levels, uint8_t *codes, int32_t *sum) {
    float inverse = 1.0f / step, half = (float)(levels / 2), highest = levels ? 2.0f * half - 1.0f : 127.0f;
    float lowest = levels ? 0.0f : -127.0f;
    for (ptrdiff_t i = 0; i < n; i++) {
        float value = at_most(at_least(x[i] * inverse + half, lowest), highest);
        int32_t code = (int32_t)(levels ? value : round_even(value));
        *sum += code;
        codes[i] = (uint8_t)code;
    }
    return levels ? step * 0.5f : step;
}

/* A row as its codes stand for it, its mean rounding error added back: the weights that a product meets. */
static void round_weights(const float *row, ptrdiff_t n, int levels, uint8_t *codes, float *restrict to) {
    int32_t sum;
    float left, scale = levels ? quantize_half_steps(row, n, levels, codes, &left) : quantize_row(row, n, codes, &left, &sum);
    float residual = left * (levels ? 2.0f * scale : scale) / (float)n;
    if (levels)
        for (ptrdiff_t i = 0; i < n; i++) to[i] = (float)(2 * codes[i] - levels + 1) * scale + residual;
    else
        for (ptrdiff_t i = 0; i < n; i++) to[i] = (float)(int8_t)codes[i] * scale + residual;
}

static uint16_t to_half(float value) { /* round half to even, subnormals included; |value| < 65520 */
    uint32_t bits, sign;
    memcpy(&bits, &value, 4);
    sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits < 0x38800000) { /* below 2^-14: the steps of float16 are 2^-24 */
        float small;
        memcpy(&small, &bits, 4);
        small += 0.5f; /* in [0.5, 1) the steps of float32 are 2^-24 as well */
        memcpy(&bits, &small, 4);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    bits += 0xc8000fff + (bits >> 13 & 1);
    return (uint16_t)(sign | bits >> 13);
}

/* Put a panel's floats column by column, 16 rows at a time: so few streams the caches can read side by side. */
static void store_floats(enum kind kind, const float *weight, ptrdiff_t rows, ptrdiff_t cols, ptrdiff_t padded_rows,
                         uint8_t *tile) {
    for (ptrdiff_t first = 0; first < rows; first += BLOCK)
        for (ptrdiff_t i = 0; i < cols; i++)
            for (ptrdiff_t r = first; r < rows && r < first + BLOCK; r++) {
                uint16_t half = kind == FP16 ? to_half(weight[r * cols + i]) : 0;
                if (kind == FP16)
                    memcpy(tile + (i * padded_rows + r) * 2, &half, 2);
                else
                    memcpy(tile + (i * padded_rows + r) * 4, weight + r * cols + i, 4);
            }
}

/* Put one row's codes into its four bytes of every step. */
INLINE void store_row_of(const uint8_t *codes, ptrdiff_t cols_padded, ptrdiff_t stride, uint8_t *tile, const int bits) {
    uint32_t runs[8], words[3];
    for (ptrdiff_t i = 0; i < cols_padded; i += 4 * PARTS(bits)) {
        memcpy(runs, codes + i, 4 * PARTS(bits));
        join_levels(runs, words, bits);
        for (int w = 0; w < WORDS_OF(bits); w++, tile += stride) memcpy(tile, words + w, 4);
    }
}

static void store_row(enum kind kind, const uint8_t *codes, ptrdiff_t cols_padded, ptrdiff_t stride, uint8_t *tile) {
    switch (kind) {
    case W4A8:
    case W4G128A8: store_row_of(codes, cols_padded, stride, tile, 4); break;
    case W3A8: store_row_of(codes, cols_padded, stride, tile, 3); break;
    case W2A8: store_row_of(codes, cols_padded, stride, tile, 2); break;
    default: store_row_of(codes, cols_padded, stride, tile, 8);
    }
}

/* Put 16 rows' codes into 16 neighbouring bytes of every column: a transposition, 16 columns at a time. */
static void store_columns(const uint8_t *codes, ptrdiff_t cols_padded, ptrdiff_t stride, uint8_t *tile) {
    for (ptrdiff_t i = 0; i < cols_padded; i += 16, tile += 16 * stride) {
#ifdef __SSE2__
        __m128i a[16], b[16];
        for (int r = 0; r < 16; r++) a[r] = _mm_loadu_si128((const void *)(codes + r * cols_padded + i));
        for (int pass = 0; pass < 4; pass++) { /* each interleaves row r with row r + 8 */
            for (int r = 0; r < 8; r++) {
                b[2 * r] = _mm_unpacklo_epi8(a[r], a[r + 8]);
                b[2 * r + 1] = _mm_unpackhi_epi8(a[r], a[r + 8]);
            }
            memcpy(a, b, sizeof a);
        }
        for (int c = 0; c < 16; c++) _mm_storeu_si128((void *)(tile + c * stride), a[c]);
#else
        for (int c = 0; c < 16; c++)
            for (int r = 0; r < 16; r++) tile[c * stride + r] = codes[r * cols_padded + i + c];
#endif
    }
}

static ptrdiff_t encode_panel(enum kind kind, const float *weight, ptrdiff_t rows, ptrdiff_t cols, int blocks,
                              ptrdiff_t cols_padded, uint8_t *tiles, float *scales, int32_t *row_sums,
                              float *residuals, uint8_t *scratch, const float *steps) {
    ptrdiff_t padded_rows = blocks * BLOCK, group = kind == W4G128A8 ? GROUP : cols_padded;
    int levels = levels_of(kind), is_float = kind == FP32 || kind == FP16;
    float limit = kind == FP16 ? 65520.0f : INFINITY;
    if (is_float) memset(tiles, 0, (size_t)(padded_rows * cols_padded * (kind == FP32 ? 4 : 2)));
    for (ptrdiff_t r = 0; r < padded_rows; r++) {
        const float *row = weight + r * cols;
        uint8_t *codes = scratch + (kind == W8U8 ? r % 16 * cols_padded : 0);
        float residual = 0.0f, left;
        int32_t sum = 0;
        if (r < rows && !(absmax_of(row, cols) < limit)) return r * cols + first_beyond(row, cols, limit);
        if (is_float) continue;
        if (r >= rows || cols_padded != cols) memset(codes, 0, (size_t)cols_padded);
        for (ptrdiff_t start = 0, g = 0; start < cols_padded; start += group, g++) {
            ptrdiff_t n = start + group < cols ? group : cols - start;
            float scale = 0.0f;
            if (r < rows && steps) {
                scale = quantize_by_step(row, n, steps[r], kind == W8A8 || kind == W8A16 || kind == W8U8 ? 0 : levels, codes, &sum);
            } else if (r < rows && (kind == W8A8 || kind == W8A16 || kind == W8U8)) {
                scale = quantize_row(row, n, codes, &left, &sum);
                residual = left * scale;
            } else if (r < rows) {
                scale = quantize_half_steps(row + start, n, levels, codes + start, &left);
                residual += left * (2.0f * scale);
            }
            scales[g * padded_rows + r] = scale;
        }
        residuals[r] = residual / (float)cols;
        if (row_sums) row_sums[r] = sum;
        if (kind != W8U8)
            store_row(kind, codes, cols_padded, padded_rows * 4, tiles + r * 4);
        else if (r % 16 == 15)
            store_columns(scratch, cols_padded, padded_rows, tiles + r - 15);
    }
    if (is_float) store_floats(kind, weight, rows, cols, padded_rows, tiles);
    return -1;
}
