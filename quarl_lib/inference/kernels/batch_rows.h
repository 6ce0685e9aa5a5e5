/* Batches, in plain C for the compiler's vectorizer: weights to panels, sums to outputs. */

#ifdef BYTE_PRODUCTS
static void interleave_columns(const uint8_t *weights, ptrdiff_t stride, int rows, ptrdiff_t cols, uint8_t *panel);
#else
#define WORD_PAIR(low, high) ((uint32_t)(low) & 0xffff) | (uint32_t)(high) << 16

/* Four signed bytes as two pairs of words: the first two columns of a step, and the last two. */
INLINE uint32_t first_words(uint32_t t) { return WORD_PAIR((int32_t)(t << 24) >> 24, (int32_t)(t << 16) >> 24); }
INLINE uint32_t last_words(uint32_t t) { return WORD_PAIR((int32_t)(t << 8) >> 24, (int32_t)t >> 24); }

/* Each run of four columns in a step of the layout becomes two steps of words. */
INLINE void unpack_words(const uint8_t *restrict weights, ptrdiff_t stride, int rows, ptrdiff_t steps,
                         uint32_t *restrict panel, const int bits) {
    for (ptrdiff_t s = 0; s < steps; s++, weights += WORDS_OF(bits) * stride)
        for (int p = 0; p < PARTS(bits); p++, panel += 2 * rows)
            for (int first = 0; first < rows; first += BLOCK)
                for (int r = first; r < first + BLOCK; r++) {
                    uint32_t t = four_levels(weights + r * 4, stride, p, bits);
                    panel[r] = first_words(t), panel[rows + r] = last_words(t);
                }
}

/* Columns of bytes, two by two to words. */
INLINE void unpack_columns(const uint8_t *restrict weights, ptrdiff_t stride, int rows, ptrdiff_t cols,
                           uint32_t *restrict panel) {
    for (ptrdiff_t c = 0; c < cols; c += 2, weights += 2 * stride, panel += rows) {
        const int8_t *left = (const int8_t *)weights, *right = left + stride;
        for (int first = 0; first < rows; first += BLOCK)
            for (int r = first; r < first + BLOCK; r++) panel[r] = WORD_PAIR(left[r], right[r]);
    }
}
#endif

static void unpack(enum kind kind, const uint8_t *weights, ptrdiff_t stride, int blocks, ptrdiff_t cols, uint8_t *panel) {
    int rows = blocks * BLOCK;
#ifdef LEVEL_PRODUCTS
    if (kind == W4A8 || kind == W4G128A8) unpack_levels(weights, stride, rows, cols / 8, panel, 4);
    if (kind == W3A8) unpack_levels(weights, stride, rows, cols / 32, panel, 3);
    if (kind == W2A8) unpack_levels(weights, stride, rows, cols / 16, panel, 2);
#else
    uint32_t *words_of_levels = (uint32_t *)(void *)panel;
    if (kind == W4A8 || kind == W4G128A8) unpack_words(weights, stride, rows, cols / 8, words_of_levels, 4);
    if (kind == W3A8) unpack_words(weights, stride, rows, cols / 32, words_of_levels, 3);
    if (kind == W2A8) unpack_words(weights, stride, rows, cols / 16, words_of_levels, 2);
#endif
#ifdef BYTE_PRODUCTS
    if (kind == W8U8) interleave_columns(weights, stride, rows, cols, panel);
#else
    uint32_t *words = (uint32_t *)(void *)panel;
    if (kind == W8U8) unpack_columns(weights, stride, rows, cols, words);
    if (kind == W8A8 || kind == W8A16) unpack_words(weights, stride, rows, cols / 4, words, 8);
#endif
}

enum correction { PLAIN, SHIFTED, DOUBLED, JOINED };

INLINE uint32_t finish_of(const outcome *o, const int32_t *restrict sums, ptrdiff_t rows, int32_t center,
                          float code_sum, float activation_scale, float *restrict y, const enum correction correction,
                          const int relu) {
    const float *restrict scales = o->scales, *restrict residuals = o->residuals, *restrict bias = o->bias;
    const int32_t *restrict row_sums = o->row_sums;
    int32_t shift = o->shift, highest = 0;
    for (ptrdiff_t first = 0; first < rows; first += BLOCK)
        for (ptrdiff_t r = first; r < first + BLOCK; r++) {
            int32_t sum = sums[r], bits;
            if (correction == SHIFTED) sum -= shift * row_sums[r];
            if (correction == DOUBLED) sum = 2 * sum - center;
            if (correction == JOINED) /* parts may overflow, the whole does not */
                sum = (int32_t)((uint32_t)sum + ((uint32_t)sums[PANEL + r] << 8) - ((uint32_t)row_sums[r] << 15));
            float value = ((float)sum * scales[r] + code_sum * residuals[r]) * activation_scale + bias[r];
            if (relu) value = value > 0.0f ? value : 0.0f;
            y[r] = value;
            memcpy(&bits, &value, 4);
            bits &= 0x7fffffff;
            highest = bits > highest ? bits : highest;
        }
    return (uint32_t)highest;
}

#define FINISH(correction)                                                                                      \
    return o->relu ? finish_of(o, sums, rows, center, code_sum, activation_scale, y, correction, 1)              \
                   : finish_of(o, sums, rows, center, code_sum, activation_scale, y, correction, 0)

static uint32_t finish(const outcome *o, const int32_t *sums, ptrdiff_t rows, int32_t center, float code_sum,
                       float activation_scale, float *y) {
    if (o->halves) FINISH(JOINED);
    if (o->row_sums) FINISH(SHIFTED);
    if (o->doubled) FINISH(DOUBLED);
    FINISH(PLAIN);
}

#ifdef BYTE_PRODUCTS
/* Round as `quantize16` does; the low bytes of the codes + 32768 to `codes`, the high ones `stride` behind. */
#define QUANTIZE_HALVES quantize_halves
static int32_t quantize_halves(const float *restrict x, ptrdiff_t n, float inverse, ptrdiff_t stride, uint8_t *restrict codes) {
    int32_t sum = 0;
    uint8_t *restrict high = codes + stride;
    for (ptrdiff_t i = 0; i < n; i++) {
        int32_t code = (int32_t)round_even(x[i] * inverse);
        sum += code;
        codes[i] = (uint8_t)code;
        high[i] = (uint8_t)((uint32_t)(code + 32768) >> 8);
    }
    return sum;
}
#else
#define QUANTIZE_HALVES NULL
#endif
