/* Packed weights to another precision, or to plain floats: one layer a call, for pack.py. */
#include "engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const int bits_of[NUM_KINDS] = KIND_BITS, step_of[NUM_KINDS] = KIND_STEP;

typedef struct {
    Py_buffer tiles, scales, row_sums, residuals;
    enum kind kind;
    ptrdiff_t cols_padded, rows_padded;
} sections;

/* Hold a layer's sections to its sizes; what a kind does not have may be None. */
static int take(sections *s, PyObject *tuple, ptrdiff_t rows, ptrdiff_t cols, int writable) {
    PyObject *objects[4];
    int kind;
    if (!PyArg_ParseTuple(tuple, "iOOOO:sections", &kind, &objects[0], &objects[1], &objects[2], &objects[3])) return 0;
    if (kind < 0 || kind >= NUM_KINDS) {
        PyErr_Format(PyExc_ValueError, "convert: kind %d is unknown", kind);
        return 0;
    }
    ptrdiff_t step = step_of[kind], groups;
    s->kind = (enum kind)kind;
    s->rows_padded = (rows + BLOCK - 1) / BLOCK * BLOCK, s->cols_padded = (cols + step - 1) / step * step;
    groups = kind == W4G128A8 ? s->cols_padded / GROUP : 1;
    ptrdiff_t sizes[4] = {s->rows_padded * s->cols_padded * bits_of[kind] / 8, s->rows_padded * groups * 4, s->rows_padded * 4,
                          s->rows_padded * 4};
    int needed[4] = {1, kind > FP16, writable && kind == W8A8, writable && kind > FP16};
    Py_buffer *views[4] = {&s->tiles, &s->scales, &s->row_sums, &s->residuals};
    for (int i = 0; i < 4; i++) {
        if (objects[i] == Py_None && !needed[i]) continue;
        if (PyObject_GetBuffer(objects[i], views[i], writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0) return 0;
        if (views[i]->len >= sizes[i] && (uintptr_t)views[i]->buf % 4 == 0) continue;
        PyErr_Format(PyExc_ValueError, "convert: section %d has %zd bytes, %zd aligned ones are needed", i, views[i]->len, sizes[i]);
        return 0;
    }
    return 1;
}

static void release(sections *s) {
    Py_buffer *views[4] = {&s->tiles, &s->scales, &s->row_sums, &s->residuals};
    for (int i = 0; i < 4; i++)
        if (views[i]->obj) PyBuffer_Release(views[i]);
}

static strip strip_at(const sections *s, ptrdiff_t row, ptrdiff_t rows) {
    ptrdiff_t height = s->kind == W8U8 ? TALL_PANEL : PANEL, first = row / height * height, within = row - first;
    ptrdiff_t panel_rows = s->rows_padded - first < height ? s->rows_padded - first : height;
    ptrdiff_t groups = s->kind == W4G128A8 ? s->cols_padded / GROUP : 1;
    ptrdiff_t row_bytes = s->kind == FP32 ? 4 : s->kind == FP16 ? 2 : s->kind == W8U8 ? 1 : 4;
    strip at = {s->kind, rows - row < BLOCK ? rows - row : BLOCK, panel_rows, s->cols_padded, NULL, NULL, NULL, NULL};
    at.tiles = (uint8_t *)s->tiles.buf + first * s->cols_padded * bits_of[s->kind] / 8 + within * row_bytes;
    if (s->scales.buf) at.scales = (float *)s->scales.buf + first * groups + within;
    if (s->residuals.buf) at.residuals = (float *)s->residuals.buf + row;
    if (s->row_sums.buf) at.row_sums = (int32_t *)s->row_sums.buf + row;
    return at;
}

static ptrdiff_t scale_rows(const sections *s) { return BLOCK * (s->kind == W4G128A8 ? s->cols_padded / GROUP : 1); }

/* A strip into rows: 16 columns at a time, so that both sides stay in a few cache lines. */
static void store_rows(const float *strip, ptrdiff_t cols, ptrdiff_t rows, float *to) {
    for (ptrdiff_t start = 0; start < cols; start += BLOCK)
        for (ptrdiff_t r = 0; r < rows; r++)
            for (ptrdiff_t c = start; c < start + BLOCK && c < cols; c++) to[r * cols + c] = strip[c * BLOCK + r];
}

const char convert_doc[] =
    "convert(rows, cols, source, target)\n--\n\n"
    "Quantize a packed layer anew into another kind's sections, or write it as float32 rows where `target` is a buffer;\n"
    "sections are (kind, tiles, scales, row_sums, residuals). Return False where a weight does not fit.";

PyObject *convert(PyObject *module, PyObject *args) {
    (void)module;
    Py_ssize_t rows, cols;
    PyObject *from_tuple, *to_object, *result = NULL;
    sections from = {0}, to = {0};
    Py_buffer plain = {0};
    const kernels *k = module_kernels();
    if (!PyArg_ParseTuple(args, "nnO!O:convert", &rows, &cols, &PyTuple_Type, &from_tuple, &to_object)) return NULL;
    if (rows < 1 || cols < 1 || rows > MAX_COLUMNS || cols > MAX_COLUMNS)
        return PyErr_Format(PyExc_ValueError, "convert: %zd x %zd weights", rows, cols);
    float *floats = aligned_alloc(64, ((size_t)cols + 2 * GROUP) * BLOCK * 4);
    if (!floats) return PyErr_NoMemory();
    if (!take(&from, from_tuple, rows, cols, 0)) goto done;
    int packed = PyTuple_Check(to_object);
    if (packed && !take(&to, to_object, rows, cols, 1)) goto done;
    if (!packed && PyObject_GetBuffer(to_object, &plain, PyBUF_WRITABLE) < 0) goto done;
    if (!packed && plain.len < rows * cols * 4) {
        PyErr_Format(PyExc_ValueError, "convert: %zd bytes cannot hold %zd x %zd floats", plain.len, rows, cols);
        goto done;
    }
    int good = 1;
    Py_BEGIN_ALLOW_THREADS;
    for (ptrdiff_t row = 0; row < rows && good; row += BLOCK) {
        strip source = strip_at(&from, row, rows);
        strip target = packed ? strip_at(&to, row, rows) : (strip){0};
        if (packed && to.kind == FP32 && from.kind > FP16) { /* nothing between: floats lie in the tiles as in a strip */
            for (ptrdiff_t i = 0; i < scale_rows(&from); i++) good = good && isfinite(source.scales[i / BLOCK * source.panel_rows + i % BLOCK]);
            k->decode_strip(&source, cols, (float *)(void *)target.tiles, target.panel_rows);
            for (ptrdiff_t c = cols; c < to.cols_padded; c++) memset(target.tiles + c * target.panel_rows * 4, 0, BLOCK * 4);
            continue;
        }
        k->decode_strip(&source, cols, floats, BLOCK);
        if (packed) {
            good = k->encode_strip(&target, cols, floats);
        } else {
            store_rows(floats, cols, source.rows, (float *)plain.buf + row * cols);
        }
    }
    Py_END_ALLOW_THREADS;
    result = PyBool_FromLong(good);
done:
    free(floats);
    release(&from), release(&to);
    if (plain.obj) PyBuffer_Release(&plain);
    return result;
}
