#define _GNU_SOURCE
#include "mlp.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TINY 7.888609052210118e-31f /* as in float_rows.h */
#define FINITE_BITS 0x7f7fffffu

/* Rows of scratch, one for each observation of a batch; the engine makes `width` wide enough for every layer. */
static int8_t *bytes_of(const mlp *m, int i) { return (int8_t *)m->codes + (ptrdiff_t)i * m->width * 4; }
static float *values_of(const mlp *m, int i) { return m->values + (ptrdiff_t)i * m->width; }
static uint16_t *columns_of(const mlp *m, int i) { return m->columns + (ptrdiff_t)i * m->width * 2; }

static void *zeroed(size_t size) {
    void *memory = aligned_alloc(64, (size + 63) & ~(size_t)63);
    if (memory) memset(memory, 0, size);
    return memory;
}

static void free_scratch(mlp *m) {
    free(m->x), free(m->y), free(m->codes), free(m->values), free(m->columns), free(m->panel), free(m->sums);
}

int mlp_reserve(mlp *m, int batch) {
    if (batch <= m->batch) return 1;
    mlp grown = *m;
    size_t row = (size_t)m->width * (size_t)batch * 4;
    grown.x = zeroed(row), grown.y = zeroed(row), grown.values = zeroed(row);
    grown.columns = zeroed(row);
    grown.codes = zeroed(row + (size_t)m->width + (size_t)batch * 128 + 64); /* of a batch two rows each, and one of ones */
    grown.panel = zeroed((size_t)CHUNK_STEPS * TALL_PANEL * 4), grown.sums = zeroed((size_t)batch * TALL_PANEL * 4 + PANEL * 4);
    if (!grown.x || !grown.y || !grown.codes || !grown.values || !grown.columns || !grown.panel || !grown.sums) {
        free_scratch(&grown);
        return 0;
    }
    free_scratch(m);
    *m = grown;
    m->batch = batch;
    return 1;
}

void mlp_free(mlp *m) {
    free_scratch(m);
    free(m->low), free(m->high), free(m->middle), free(m->half_width);
}

int mlp_not_finite(const float *x, ptrdiff_t n, bad_value *bad, int layer_index, int row) {
    for (ptrdiff_t i = 0; i < n; i++)
        if (!isfinite(x[i])) {
            *bad = (bad_value){layer_index, row, i, x[i]};
            return 0;
        }
    return 0;
}

float mlp_activation_scale(uint32_t absmax_bits, int limit, float *scale) {
    float absmax;
    memcpy(&absmax, &absmax_bits, 4);
    int zero = absmax < TINY;
    *scale = zero ? 0.0f : absmax / (float)limit;
    return zero ? 0.0f : (float)limit / absmax;
}

float mlp_input_factor(mlp *m, const layer *l, int i, uint32_t absmax_bits) {
    float *x = row_of(m, m->x, i), step = *(const float *)(m->data + l->input_step), most = (float)l->limit * step;
    if (!(step >= TINY)) return mlp_activation_scale(absmax_bits, l->limit, m->activation_scale + i);
    m->activation_scale[i] = step;
    for (ptrdiff_t j = 0; j < l->cols; j++) x[j] = x[j] > most ? most : x[j] < -most ? -most : x[j];
    return 1.0f / step;
}

/* Fill the codes, their scale and sum for row `i` of m->x; 0 if an input is not finite. */
static int quantize_input(mlp *m, const layer *l, int index, int i, bad_value *bad) {
    const kernels *k = m->kernels;
    const float *x = row_of(m, m->x, i);
    uint32_t bits = k->absmax_bits(x, l->cols);
    if (bits > FINITE_BITS) return mlp_not_finite(x, l->cols, bad, index, i);
    float inverse = mlp_input_factor(m, l, i, bits);
    int8_t *codes = bytes_of(m, i);
    if (l->kind == W8A16) {
        m->code_sum[i] = k->quantize16(x, l->cols, inverse, (int16_t *)codes);
        memset((int16_t *)codes + l->cols, 0, (size_t)(l->cols_padded - l->cols) * 2);
        return 1;
    }
    int offset = l->kind == W8A8 ? ZERO_POINT + k->byte_offset : 0;
    m->code_sum[i] = k->quantize8(x, l->cols, inverse, offset, (uint8_t *)codes);
    memset(codes + l->cols, 0, (size_t)(l->cols_padded - l->cols)); /* meets zero weights, or a level times 0 */
    if (l->kind == W8U8)
        m->count[i] = k->list_codes((uint8_t *)codes, l->cols, columns_of(m, i), (uint8_t *)values_of(m, i));
    return 1;
}

static void list_input(mlp *m, const layer *l, int i) {
    float *x = row_of(m, m->x, i), *values = values_of(m, i);
    uint16_t *columns = columns_of(m, i);
    if (l->sparse) {
        m->count[i] = m->kernels->list_floats(x, l->cols, columns, values);
        return;
    }
    for (ptrdiff_t c = 0; c < l->cols; c++) columns[c] = (uint16_t)c, values[c] = x[c];
    for (ptrdiff_t c = l->cols; c < l->cols_padded; c++) columns[c] = 0, values[c] = 0.0f;
    m->count[i] = l->cols_padded;
}

/* Multiply one panel of `blocks` blocks by row `i`'s codes and scale the sums into y. */
static void multiply(mlp *m, const layer *l, ptrdiff_t first_row, int blocks, int i, float *y, int32_t *keep) {
    const kernels *k = m->kernels;
    const uint8_t *data = m->data;
    const uint8_t *codes = (const uint8_t *)bytes_of(m, i);
    const float *residuals = (const float *)(data + l->residuals) + first_row;
    const float *bias = (const float *)(data + l->bias) + first_row;
    float code_sum = (float)m->code_sum[i], activation_scale = m->activation_scale[i];
    static const int bits[NUM_KINDS] = KIND_BITS;
    ptrdiff_t rows = (ptrdiff_t)blocks * BLOCK;
    const uint8_t *weights = data + l->weights + first_row * l->cols_padded * bits[l->kind] / 8;
    int32_t sums[TALL_PANEL];
    if (l->kind == W4G128A8) {
        ptrdiff_t groups = l->cols_padded / GROUP;
        const float *scales = (const float *)(data + l->scales) + first_row * groups;
        float total[PANEL] = {0};
        for (ptrdiff_t g = 0; g < groups; g++, codes += GROUP, weights += rows * GROUP / 2, scales += rows) {
            k->w4a8(weights, codes, GROUP / 8, blocks, sums);
            int32_t center = 15 * m->group_sums[g];
            for (ptrdiff_t r = 0; r < rows; r++) sums[r] = 2 * sums[r] - center;
            if (keep) memcpy(keep + g * l->rows_padded + first_row, sums, (size_t)rows * 4);
            k->add_group(sums, scales, rows, total);
        }
        k->scale_total(total, residuals, bias, code_sum, activation_scale, rows, y);
        return;
    }
    if (l->kind == W8U8) {
        k->w8u8(weights, weights + rows * l->cols_padded, columns_of(m, i), (uint8_t *)values_of(m, i), m->count[i], blocks, sums);
    } else if (l->kind == W8A16) {
        k->w8a16(weights, (const int16_t *)codes, l->cols_padded / 4, blocks, sums);
    } else if (l->kind == W8A8) {
        const int32_t *row_sums = (const int32_t *)(data + l->row_sums) + first_row;
        int32_t shift = ZERO_POINT + k->byte_offset;
        k->w8a8(weights, codes, l->cols_padded / 4, blocks, sums);
        if (shift)
            for (ptrdiff_t r = 0; r < rows; r++) sums[r] -= shift * row_sums[r];
    } else {
        int32_t center = (levels_of(l->kind) - 1) * m->code_sum[i];
        if (l->kind == W2A8)
            k->w2a8(weights, codes, l->cols_padded / 16, blocks, sums);
        else if (l->kind == W3A8)
            k->w3a8(weights, codes, l->cols_padded / 32, blocks, sums);
        else
            k->w4a8(weights, codes, l->cols_padded / 8, blocks, sums);
        for (ptrdiff_t r = 0; r < rows; r++) sums[r] = 2 * sums[r] - center;
    }
    if (keep) memcpy(keep + first_row, sums, (size_t)rows * 4);
    const float *scales = (const float *)(data + l->scales) + first_row;
    k->scale_sums(sums, scales, residuals, bias, code_sum, activation_scale, rows, y);
}

static void multiply_float(mlp *m, const layer *l, ptrdiff_t first_row, int blocks, int i, float *y) {
    const float *bias = (const float *)(m->data + l->bias) + first_row;
    const uint8_t *weights = m->data + l->weights + first_row * l->cols_padded * (l->kind == FP16 ? 2 : 4);
    product_f *product = l->kind == FP16 ? m->kernels->fp16 : m->kernels->fp32;
    const uint8_t *next = weights + (ptrdiff_t)blocks * BLOCK * l->cols_padded * (l->kind == FP16 ? 2 : 4);
    product(weights, next, columns_of(m, i), values_of(m, i), m->count[i], blocks, y);
    for (int r = 0; r < blocks * BLOCK; r++) y[r] += bias[r];
}

static void sum_groups(mlp *m, const layer *l, int i) {
    const int8_t *codes = bytes_of(m, i);
    for (ptrdiff_t g = 0; g < l->cols_padded / GROUP; g++, codes += GROUP) {
        int32_t sum = 0;
        for (int j = 0; j < GROUP; j++) sum += codes[j];
        m->group_sums[g] = sum;
    }
}

void mlp_activate(mlp *m, const layer *l, int n) {
    for (int i = 0; i < n; i++) {
        float *y = row_of(m, m->y, i);
        if (l->layer_norm)
            m->kernels->layer_norm(y, l->rows, (const float *)(m->data + l->norm_scale),
                                   (const float *)(m->data + l->norm_offset), l->eps);
        m->kernels->activate(y, l->rows, l->activation);
    }
}

int mlp_layer(mlp *m, int index, int n, int32_t *sums, bad_value *bad) {
    m->absmax_known = 0;
    const layer *l = m->layers + index;
    int quantized = l->kind != FP32 && l->kind != FP16;
    for (int i = 0; i < n; i++) {
        if (quantized && !quantize_input(m, l, index, i, bad)) return 0;
        if (!quantized) list_input(m, l, i);
    }
    /* A panel's weights stay in the second-level cache while every observation of the batch passes them. */
    ptrdiff_t panel = l->kind == W8U8 ? TALL_PANEL : PANEL;
    for (ptrdiff_t first = 0; first < l->rows_padded; first += panel) {
        ptrdiff_t rest = l->rows_padded - first;
        int blocks = (int)((rest < panel ? rest : panel) / BLOCK);
        for (int i = 0; i < n; i++) {
            float *y = row_of(m, m->y, i) + first;
            if (l->kind == W4G128A8 && (first == 0 || n > 1)) sum_groups(m, l, i);
            if (quantized)
                multiply(m, l, first, blocks, i, y, sums);
            else
                multiply_float(m, l, first, blocks, i, y);
        }
    }
    mlp_activate(m, l, n);
    return 1;
}

int mlp_observe(mlp *m, int i, const void *observation, int wide, bad_value *bad) {
    float *x = row_of(m, m->x, i);
    ptrdiff_t n = m->layers[0].cols;
    const double *mean = (const double *)(m->data + m->mean), *inverse_std = (const double *)(m->data + m->inverse_std);
    if (wide) {
        const double *exact = observation;
        for (ptrdiff_t j = 0; j < n; j++) {
            if (!(fabs(exact[j]) <= DBL_MAX)) {
                *bad = (bad_value){0, i, j, (float)exact[j]};
                return 0;
            }
            float value = (float)((exact[j] - mean[j]) * inverse_std[j]);
            x[j] = value < -m->clip ? -m->clip : value > m->clip ? m->clip : value;
        }
        return 1;
    }
    memcpy(x, observation, (size_t)n * 4);
    if (m->kernels->absmax_bits(x, n) > FINITE_BITS) return mlp_not_finite(x, n, bad, 0, i);
    if (m->mean) m->kernels->normalize(x, n, mean, inverse_std, m->clip);
    return 1;
}

int mlp_forward(mlp *m, int n, bad_value *bad) {
    const layer *last = m->layers + m->num_layers - 1;
    m->absmax_known = 0;
    for (int j = 0; j < m->num_layers; j++) {
        enum kind kind = m->layers[j].kind;
        int batched = m->kernels->modes[kind] != NO_BATCH && n >= m->kernels->batched_from[kind];
        if (!(batched ? mlp_batch_layer(m, j, n, bad) : mlp_layer(m, j, n, NULL, bad))) return 0;
        float *swap = m->x;
        m->x = m->y, m->y = swap;
    }
    float *swap = m->x;
    m->x = m->y, m->y = swap;
    for (int i = 0; i < n; i++)
        if (m->kernels->absmax_bits(row_of(m, m->y, i), last->rows) > FINITE_BITS)
            return mlp_not_finite(row_of(m, m->y, i), last->rows, bad, m->num_layers, i);
    return 1;
}

/* splitmix64 (Steele, Lea and Flood 2014) in [0, 1); heads.py draws the same numbers. */
static double uniform(mlp *m) {
    uint64_t z = m->random_state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static ptrdiff_t categorical(mlp *m, const float *logits, ptrdiff_t n) {
    double highest = logits[0], total = 0.0;
    for (ptrdiff_t i = 1; i < n; i++) highest = logits[i] > highest ? logits[i] : highest;
    for (ptrdiff_t i = 0; i < n; i++) total += exp((double)logits[i] - highest);
    double rest = uniform(m) * total;
    for (ptrdiff_t i = 0; i < n; i++)
        if ((rest -= exp((double)logits[i] - highest)) < 0.0) return i;
    return n - 1;
}

static double normal(mlp *m) {
    double radius = sqrt(-2.0 * log(1.0 - uniform(m)));
    return radius * cos(2.0 * 3.141592653589793 * uniform(m));
}

ptrdiff_t mlp_action(mlp *m, int i, float *action) {
    ptrdiff_t n = m->layers[m->num_layers - 1].rows, best = 0;
    float *y = row_of(m, m->y, i);
    const float *log_std = (const float *)(m->data + m->log_std);
    switch (m->head) {
    case HEAD_ARGMAX:
        for (ptrdiff_t j = 1; j < n; j++) best = y[j] > y[best] ? j : best;
        return best;
    case HEAD_CATEGORICAL: return categorical(m, y, n);
    case HEAD_TANH:
        m->kernels->activate(y, n, TANH);
        for (ptrdiff_t j = 0; j < n; j++) action[j] = m->middle[j] + m->half_width[j] * y[j];
        return 0;
    case HEAD_GAUSSIAN:
        for (ptrdiff_t j = 0; j < n; j++) y[j] = (float)((double)y[j] + exp((double)log_std[j]) * normal(m));
        break;
    default: break;
    }
    for (ptrdiff_t j = 0; j < n; j++) {
        float v = y[j];
        if (m->low) v = v < m->low[j] ? m->low[j] : v > m->high[j] ? m->high[j] : v;
        action[j] = v;
    }
    return 0;
}
