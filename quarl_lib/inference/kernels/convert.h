/* From tiles of one kind to tiles of another without leaving columns: 16 rows at a time, a strip [column][16 rows] of floats
 * between them. Included by float_rows.h; the numbers are those of encode.h and tiles.py, bit for bit. */

#define ROWS for (int r = 0; r < BLOCK; r++)

INLINE int32_t byte_at(uint32_t word, int j) { return (int32_t)(word << (24 - 8 * j)) >> 24; }

/* 2^112 takes float16's exponent to float32's, subnormals included. */
INLINE float half_to_float(uint16_t half) {
    uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13, sign = (uint32_t)(half & 0x8000) << 16;
    float value;
    memcpy(&value, &magnitude, 4);
    value *= 5.192296858534828e33f;
    memcpy(&magnitude, &value, 4);
    magnitude |= sign;
    memcpy(&value, &magnitude, 4);
    return value;
}

/* Columns of a w8 step: four signed bytes a row. Of w4, w3 and w2: runs of four levels. */
INLINE void decode_words(const strip *s, ptrdiff_t cols, float *restrict to, ptrdiff_t stride, const int bits) {
    ptrdiff_t columns = 4 * PARTS(bits), words = s->panel_rows * 4, group = s->kind == W4G128A8 ? GROUP : s->cols_padded;
    for (ptrdiff_t c = 0; c < cols; c += columns) {
        const uint8_t *tile = s->tiles + c / columns * WORDS_OF(bits) * words;
        const float *scales = s->scales + c / group * s->panel_rows;
        for (int p = 0; p < PARTS(bits); p++)
            for (int j = 0; j < 4 && c + 4 * p + j < cols; j++, to += stride) ROWS {
                    int32_t code = byte_at(four_levels(tile + 4 * r, words, p, bits), j);
                    if (bits < 8) code = 2 * code - ((1 << bits) - 1);
                    to[r] = (float)code * scales[r];
                }
    }
}

static void decode_strip(const strip *s, ptrdiff_t cols, float *restrict to, ptrdiff_t stride) {
    ptrdiff_t rows = s->panel_rows;
    switch (s->kind) {
    case FP32:
        for (ptrdiff_t c = 0; c < cols; c++) memcpy(to + c * stride, s->tiles + c * rows * 4, BLOCK * 4);
        break;
    case FP16:
        for (ptrdiff_t c = 0; c < cols; c++) {
            uint16_t half[BLOCK];
            memcpy(half, s->tiles + c * rows * 2, sizeof half);
            ROWS to[c * stride + r] = half_to_float(half[r]);
        }
        break;
    case W8U8:
        for (ptrdiff_t c = 0; c < cols; c++) ROWS to[c * stride + r] = (float)(int8_t)s->tiles[c * rows + r] * s->scales[r];
        break;
    case W4A8:
    case W4G128A8: decode_words(s, cols, to, stride, 4); break;
    case W3A8: decode_words(s, cols, to, stride, 3); break;
    case W2A8: decode_words(s, cols, to, stride, 2); break;
    default: decode_words(s, cols, to, stride, 8);
    }
    if (s->rows < BLOCK)
        for (ptrdiff_t c = 0; c < cols; c++)
            for (ptrdiff_t r = s->rows; r < BLOCK; r++) to[c * stride + r] = 0.0f;
}

static void strip_absmax(const float *restrict x, ptrdiff_t n, float *restrict absmax) {
    int32_t highest[BLOCK] = {0};
    for (ptrdiff_t c = 0; c < n; c++, x += BLOCK) ROWS {
            int32_t bits;
            memcpy(&bits, x + r, 4);
            bits &= 0x7fffffff;
            highest[r] = bits > highest[r] ? bits : highest[r];
        }
    memcpy(absmax, highest, sizeof highest);
}

/* The sums of what rounding left, column by column in 32 lanes, then by halves: those of `rests`. */
static void strip_totals(float lanes[LANES][BLOCK], float *left) {
    for (int half = LANES / 2; half; half /= 2)
        for (int j = 0; j < half; j++) ROWS lanes[j][r] += lanes[j + half][r];
    memcpy(left, lanes[0], BLOCK * 4);
}

/* A strip's columns of 8 bits straight into tiles, as quantize_row; 16 bytes of a column together, or four of a row. */
INLINE void quantize_strip(const strip *to, const float *restrict x, ptrdiff_t n, const float *restrict absmax,
                           float *restrict left, int32_t *restrict sums, const int tall) {
    float inverse[BLOCK], lanes[LANES][BLOCK] = {{0}};
    ROWS inverse[r] = absmax[r] < TINY ? 0.0f : 127.0f / absmax[r];
    ROWS to->scales[r] = absmax[r] < TINY ? 0.0f : absmax[r] / 127.0f;
    uint8_t *tile = to->tiles;
    for (ptrdiff_t c = 0; c < to->cols_padded; tile += to->panel_rows * (tall ? 1 : 4)) {
        uint32_t words[BLOCK] = {0};
        for (int j = 0; j < (tall ? 1 : 4); j++, c++) {
            if (c >= n) continue;
            const float *restrict column = x + c * BLOCK;
            float *restrict lane = lanes[c % LANES];
            ROWS {
                float steps = column[r] * inverse[r], code = round_even(steps);
                lane[r] += steps - code;
                int32_t integer = (int32_t)code;
                sums[r] += integer;
                words[r] |= ((uint32_t)integer & 0xff) << 8 * j;
            }
        }
        if (tall)
            ROWS tile[r] = (uint8_t)words[r];
        else
            memcpy(tile, words, sizeof words);
    }
    strip_totals(lanes, left);
}

/* Levels of n columns into the strip itself, which ends in zeros; as quantize_half_steps. */
static void half_step_strip(float *restrict x, ptrdiff_t n, int levels, float *restrict scales, float *restrict left) {
    float absmax[BLOCK], inverse[BLOCK], lanes[LANES][BLOCK] = {{0}}, half = (float)(levels / 2), used[BLOCK];
    float highest = 2.0f * half - 1.0f, center = half - 0.5f;
    strip_absmax(x, n, absmax);
    ROWS used[r] = absmax[r] < TINY ? 0.0f : 1.0f;
    ROWS inverse[r] = absmax[r] < TINY ? 0.0f : half / absmax[r];
    ROWS scales[r] = absmax[r] < TINY ? 0.0f : absmax[r] / (float)levels;
    for (ptrdiff_t c = 0; c < n; c++, x += BLOCK) {
        float *restrict lane = lanes[c % LANES];
        ROWS {
            float steps = x[r] * inverse[r];
            int32_t code = (int32_t)at_most(at_least(steps + half, 0.0f), highest);
            lane[r] += steps - ((float)code - center);
            code = used[r] != 0.0f ? code : 0;
            memcpy(x + r, &code, 4);
        }
    }
    strip_totals(lanes, left);
    ROWS left[r] = used[r] != 0.0f ? left[r] : 0.0f;
}

/* A strip's levels into the words of its rows, as store_row. */
INLINE void store_strip(const uint32_t *restrict codes, const strip *to, const int bits) {
    uint8_t *tile = to->tiles;
    for (ptrdiff_t c = 0; c < to->cols_padded; c += 4 * PARTS(bits)) {
        uint32_t words[3][BLOCK] = {{0}};
        for (int p = 0; p < PARTS(bits); p++)
            for (int j = 0; j < 4; j++, codes += BLOCK) {
                if (bits != 3) {
                    ROWS words[0][r] |= codes[r] << (8 * j + bits * p);
                } else if (p < 6) {
                    ROWS words[p / 2][r] |= codes[r] << (8 * j + 3 * (p % 2));
                } else {
                    ROWS words[p - 6][r] |= codes[r] >> 1 << (8 * j + 6);
                    ROWS words[2][r] |= (codes[r] & 1) << (8 * j + p);
                }
            }
        for (int w = 0; w < WORDS_OF(bits); w++, tile += to->panel_rows * 4) memcpy(tile, words[w], sizeof words[w]);
    }
}

#ifndef __F16C__
INLINE uint16_t float_to_half(float value) { /* to_half without a branch */
    uint32_t bits, small_bits, sign;
    memcpy(&bits, &value, 4);
    sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    float small;
    memcpy(&small, &bits, 4);
    small += 0.5f;
    memcpy(&small_bits, &small, 4);
    uint32_t normal = (bits + 0xc8000fff + (bits >> 13 & 1)) >> 13;
    return (uint16_t)(sign | (bits < 0x38800000 ? small_bits - 0x3f000000 : normal));
}
#endif

static void halves_of(const float *x, uint16_t *half) {
#ifdef __F16C__
    for (int i = 0; i < BLOCK; i += 8)
        _mm_storeu_si128((void *)(half + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#else
    ROWS half[r] = float_to_half(x[r]);
#endif
}

/* Encode a strip, which may be used up; return 0 if a weight does not fit (not finite, or beyond float16). */
static int encode_strip(const strip *to, ptrdiff_t cols, float *restrict x) {
    float left[BLOCK], residual[BLOCK] = {0}, absmax[BLOCK], limit = to->kind == FP16 ? 65520.0f : INFINITY;
    ptrdiff_t stop = to->cols_padded, group = to->kind == W4G128A8 ? GROUP : stop;
    int levels = levels_of(to->kind);
    int32_t sums[BLOCK] = {0};
    strip_absmax(x, cols, absmax);
    ROWS if (!(absmax[r] < limit)) return 0;
    switch (to->kind) {
    case FP32:
        for (ptrdiff_t c = 0; c < cols; c++) memcpy(to->tiles + c * to->panel_rows * 4, x + c * BLOCK, BLOCK * 4);
        for (ptrdiff_t c = cols; c < stop; c++) memset(to->tiles + c * to->panel_rows * 4, 0, BLOCK * 4);
        return 1;
    case FP16:
        for (ptrdiff_t c = 0; c < stop; c++) {
            uint16_t half[BLOCK] = {0};
            if (c < cols) halves_of(x + c * BLOCK, half);
            memcpy(to->tiles + c * to->panel_rows * 2, half, sizeof half);
        }
        return 1;
    case W4A8:
    case W4G128A8:
    case W3A8:
    case W2A8:
        memset(x + cols * BLOCK, 0, (size_t)((stop - cols) * BLOCK) * 4);
        for (ptrdiff_t start = 0; start < stop; start += group) {
            float *scales = to->scales + start / group * to->panel_rows;
            half_step_strip(x + start * BLOCK, start + group < cols ? group : cols - start, levels, scales, left);
            ROWS residual[r] += left[r] * (2.0f * scales[r]);
        }
        if (levels == 4)
            store_strip((const uint32_t *)(const void *)x, to, 2);
        else if (levels == 8)
            store_strip((const uint32_t *)(const void *)x, to, 3);
        else
            store_strip((const uint32_t *)(const void *)x, to, 4);
        break;
    default:
        if (to->kind == W8U8)
            quantize_strip(to, x, cols, absmax, left, sums, 1);
        else
            quantize_strip(to, x, cols, absmax, left, sums, 0);
        ROWS residual[r] = left[r] * to->scales[r];
        if (to->row_sums) memcpy(to->row_sums, sums, sizeof sums);
    }
    ROWS to->residuals[r] = residual[r] / (float)cols;
    return 1;
}
#undef ROWS
