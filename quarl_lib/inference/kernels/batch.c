/* One integer layer for many observations: a slab of weights is read and unpacked once, and every observation passes it. */
#include "mlp.h"

#include <string.h>

#define FINITE_BITS 0x7f7fffffu
enum { UNPACKED_TOGETHER = 32 /* columns: 8 KB of a tall panel */ };

static const int bits_of[NUM_KINDS] = KIND_BITS;

typedef struct { /* how a layer's codes lie */
    enum batch_mode mode;
    ptrdiff_t columns; /* of a step: 4 bytes or 2 words */
    int rows_each;     /* of codes and of sums for an observation: two of HALVES, which have one of ones in front */
    ptrdiff_t stride;  /* bytes from one observation to the next: off a power of two, which would share cache sets */
} batch;

static uint8_t *codes_of(const mlp *m, const batch *b, int row) { return (uint8_t *)m->codes + row * b->stride; }
static int blocks_at(ptrdiff_t rows, ptrdiff_t sub) { return (int)((rows - sub < PANEL ? rows - sub : PANEL) / BLOCK); }
static int ahead_of(const batch *b) { return b->mode == HALVES; } /* rows before the first observation's */
static int32_t *group_sums_of(const mlp *m, int i) { return (int32_t *)(void *)(m->values + (ptrdiff_t)i * m->width); }

static int quantize_inputs(mlp *m, const layer *l, const batch *b, int index, int n, bad_value *bad) {
    const kernels *k = m->kernels;
    int offset = l->kind == W8A8 ? ZERO_POINT : 0;
    if (b->mode == HALVES) memset(codes_of(m, b, 0), 1, (size_t)l->cols_padded);
    for (int i = 0; i < n; i++) {
        const float *x = row_of(m, m->x, i);
        uint8_t *codes = codes_of(m, b, ahead_of(b) + i * b->rows_each);
        uint32_t bits = m->absmax_known ? m->absmax[i] : k->absmax_bits(x, l->cols);
        if (bits > FINITE_BITS) return mlp_not_finite(x, l->cols, bad, index, i);
        float inverse = mlp_input_factor(m, l, i, bits);
        int size = b->mode == WORDS ? 2 : 1;
        if (b->mode == HALVES) {
            m->code_sum[i] = k->quantize_halves(x, l->cols, inverse, b->stride, codes);
            memset(codes + b->stride + l->cols, 0, (size_t)(l->cols_padded - l->cols));
        } else if (b->mode == WORDS)
            m->code_sum[i] = k->quantize16(x, l->cols, inverse, (int16_t *)(void *)codes);
        else
            m->code_sum[i] = k->quantize8(x, l->cols, inverse, offset, codes);
        memset(codes + l->cols * size, 0, (size_t)((l->cols_padded - l->cols) * size));
        if (l->kind != W4G128A8) continue;
        int32_t *sums = group_sums_of(m, i);
        memset(sums, 0, (size_t)(l->cols_padded / GROUP) * 4);
        for (ptrdiff_t c = 0; c < l->cols_padded; c++)
            sums[c / GROUP] += b->mode == WORDS ? ((int16_t *)(void *)codes)[c] : ((int8_t *)codes)[c];
    }
    return 1;
}

/* Turn an observation's sums of a sub-panel into outputs, or, of a group of columns, add them to its total. */
static void finish_rows(mlp *m, const layer *l, const outcome *o, int i, const int32_t *sums, ptrdiff_t first, ptrdiff_t rows) {
    int32_t center = (levels_of(l->kind) - 1) * m->code_sum[i];
    uint32_t bits = m->kernels->finish(o, sums, rows, center, (float)m->code_sum[i], m->activation_scale[i],
                                       row_of(m, m->y, i) + first);
    m->absmax[i] = first && m->absmax[i] > bits ? m->absmax[i] : bits;
}

static void finish_group(mlp *m, const layer *l, int i, ptrdiff_t group, ptrdiff_t first, ptrdiff_t rows, int32_t *sums,
                         float *total) {
    ptrdiff_t groups = l->cols_padded / GROUP;
    const float *scales = (const float *)(m->data + l->scales) + first * groups + group * rows;
    int32_t center = 15 * group_sums_of(m, i)[group];
    for (ptrdiff_t r = 0; r < rows; r++) sums[r] = 2 * sums[r] - center;
    if (!group) memset(total, 0, PANEL * 4);
    m->kernels->add_group(sums, scales, rows, total);
    if (group + 1 < groups) return;
    const float *residuals = (const float *)(m->data + l->residuals) + first, *bias = (const float *)(m->data + l->bias) + first;
    m->kernels->scale_total(total, residuals, bias, (float)m->code_sum[i], m->activation_scale[i], rows,
                            row_of(m, m->y, i) + first);
}

/* Multiply one slab, `cols` columns from `start` on of up to 64 rows, by all observations; `next` is fetched meanwhile. */
static void multiply_slab(mlp *m, const layer *l, const batch *b, outcome *o, ptrdiff_t first, int blocks, ptrdiff_t start,
                          ptrdiff_t cols, const uint8_t *panel, const uint8_t *next, int n, int32_t *sums) {
    int whole = b->mode == INTERLEAVED ? PANEL / BLOCK : blocks, grouped = l->kind == W4G128A8;
    int size = b->mode == WORDS ? 2 : 1, rows = ahead_of(b) + n * b->rows_each, done = 0;
    ptrdiff_t steps = cols / b->columns;
    enum batch_mode mode = b->mode == HALVES || b->mode == INTERLEAVED ? BYTES : b->mode;
    o->row_sums = b->mode == HALVES ? sums : o->row_sums;
    for (int row = 0, tiles = (rows + TILE - 1) / TILE; tiles; tiles--) {
        int count = (rows - row + tiles - 1) / tiles; /* as even as it gets: a tile of one or two waits for its sums */
        m->kernels->multiply(mode, panel, whole, codes_of(m, b, row) + start * size, b->stride, steps, count,
                             sums + (ptrdiff_t)row * PANEL, start > 0 && !grouped, next);
        next += steps * 128, row += count;
        if (start + cols < l->cols_padded && !grouped) continue;
        for (; ahead_of(b) + (done + 1) * b->rows_each <= row; done++) {
            int32_t *these = sums + (ptrdiff_t)(ahead_of(b) + done * b->rows_each) * PANEL;
            if (b->mode == INTERLEAVED) m->kernels->order_rows(these);
            if (grouped)
                finish_group(m, l, done, start / GROUP, first, blocks * BLOCK, these, (float *)(void *)(these + n * PANEL));
            else
                finish_rows(m, l, o, done, these, first, blocks * BLOCK);
        }
    }
}

/* Unpack `cols` columns of a panel, sub-panel by sub-panel: a few columns at a time, so that memory is read front to back. */
static void unpack_slab(mlp *m, const layer *l, const uint8_t *slab, ptrdiff_t rows, ptrdiff_t cols, const batch *b) {
    ptrdiff_t piece = l->kind == W8U8 && rows > PANEL ? UNPACKED_TOGETHER : cols, stride = l->kind == W8U8 ? rows : rows * 4;
    for (ptrdiff_t start = 0; start < cols; start += piece, slab += piece * rows * bits_of[l->kind] / 8) {
        ptrdiff_t n = cols - start < piece ? cols - start : piece;
        for (ptrdiff_t sub = 0; sub < rows; sub += PANEL) {
            int blocks = blocks_at(rows, sub), whole = b->mode == INTERLEAVED ? PANEL / BLOCK : blocks;
            uint8_t *to = m->panel + sub * 4 * CHUNK_STEPS + start / b->columns * whole * BLOCK * 4;
            m->kernels->unpack(l->kind, slab + sub, stride, blocks, n, to);
        }
    }
}

static void multiply_panel(mlp *m, const layer *l, const batch *b, ptrdiff_t first, ptrdiff_t rows, int n) {
    const uint8_t *weights = m->data + l->weights + first * l->cols_padded * bits_of[l->kind] / 8;
    ptrdiff_t chunk = l->kind == W4G128A8 ? GROUP : CHUNK_STEPS * b->columns;
    ptrdiff_t column_bytes = rows * bits_of[l->kind] / 8;
    int in_place = b->mode == HALVES || (l->kind == W8A8 && b->mode == BYTES); /* lies as it is needed */
    for (ptrdiff_t start = 0; start < l->cols_padded; start += chunk) {
        ptrdiff_t cols = l->cols_padded - start < chunk ? l->cols_padded - start : chunk;
        const uint8_t *slab = weights + start * column_bytes, *next = slab + cols * column_bytes;
        if (!in_place) unpack_slab(m, l, slab, rows, cols, b);
        for (ptrdiff_t sub = 0; sub < rows; sub += PANEL) {
            const float *scales = (const float *)(m->data + l->scales) + first + sub;
            outcome o = {scales, (const float *)(m->data + l->residuals) + first + sub,
                         (const float *)(m->data + l->bias) + first + sub, NULL, ZERO_POINT, b->mode == HALVES,
                         l->kind == W4A8 || l->kind == W3A8 || l->kind == W2A8, l->activation == RELU && !l->layer_norm};
            if (in_place && l->kind == W8A8) o.row_sums = (const int32_t *)(m->data + l->row_sums) + first + sub;
            const uint8_t *panel = in_place ? slab : m->panel + sub * 4 * CHUNK_STEPS;
            ptrdiff_t share = cols * column_bytes * sub / rows; /* each sub-panel fetches its part of the next slab */
            multiply_slab(m, l, b, &o, first + sub, blocks_at(rows, sub), start, cols, panel, next + share, n, m->sums + sub * n);
        }
    }
}

int mlp_batch_layer(mlp *m, int index, int n, bad_value *bad) {
    const layer *l = m->layers + index;
    batch b = {(enum batch_mode)m->kernels->modes[l->kind], 4, 1, l->cols_padded + 64};
    if (b.mode == HALVES) b.rows_each = 2;
    if (b.mode == WORDS) b.columns = 2, b.stride = 2 * l->cols_padded + 64;
    if (!quantize_inputs(m, l, &b, index, n, bad)) return 0;
    ptrdiff_t height = l->kind == W8U8 ? TALL_PANEL : PANEL;
    for (ptrdiff_t first = 0; first < l->rows_padded; first += height)
        multiply_panel(m, l, &b, first, l->rows_padded - first < height ? l->rows_padded - first : height, n);
    int simple = l->activation == RELU || l->activation == IDENTITY;
    m->absmax_known = simple && !l->layer_norm && l->kind != W4G128A8;
    if (m->absmax_known) return 1;
    mlp_activate(m, l, n);
    return 1;
}
