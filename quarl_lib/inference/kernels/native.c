/* The module: encoding, checksums and measurements for pack.py and native.py. The engine's type is in engine.c. */
#define _GNU_SOURCE
#include "engine.h"

#include <stdlib.h>
#include <time.h>

/* The kernels for work outside an engine; asked for once, because CPUID costs 20 us in a virtual machine. */
static const kernels *best_kernels;

static void choose_kernels(void) {
    const char *reason;
    best_kernels = find_kernels(getenv("QUARL_NATIVE_ISA"), &reason);
    if (!best_kernels) best_kernels = &portable_kernels;
}

const kernels *module_kernels(void) { return best_kernels; }

/* Get a contiguous buffer of at least `size` bytes, aligned for 4-byte items. */
static int get_buffer(PyObject *object, Py_buffer *view, int flags, Py_ssize_t size, const char *name) {
    if (PyObject_GetBuffer(object, view, flags) < 0) return -1;
    if (view->len >= size && (uintptr_t)view->buf % 4 == 0) return 0;
    PyErr_Format(PyExc_ValueError, "%s has %zd bytes at %p: %zd aligned bytes are needed", name, view->len, view->buf,
                 size);
    PyBuffer_Release(view);
    return -1;
}

static ptrdiff_t encode_layer(enum kind kind, const float *weight, ptrdiff_t rows, ptrdiff_t cols,
                              ptrdiff_t cols_padded, uint8_t *tiles, float *scales, int32_t *row_sums,
                              float *residuals, uint8_t *scratch, const float *steps) {
    static const int bits[NUM_KINDS] = KIND_BITS;
    const kernels *k = best_kernels;
    ptrdiff_t groups = kind == W4G128A8 ? cols_padded / GROUP : 1;
    ptrdiff_t panel = kind == W8U8 ? TALL_PANEL : PANEL;
    for (ptrdiff_t first = 0; first < rows; first += panel) {
        ptrdiff_t n = rows - first < panel ? rows - first : panel;
        ptrdiff_t bad = k->encode_panel(kind, weight + first * cols, n, cols, (int)((n + BLOCK - 1) / BLOCK), cols_padded,
                                        tiles + first * cols_padded * bits[kind] / 8, scales ? scales + first * groups : NULL,
                                        row_sums ? row_sums + first : NULL, residuals ? residuals + first : NULL, scratch,
                                        steps ? steps + first : NULL);
        if (bad >= 0) return first * cols + bad;
    }
    return -1;
}

PyDoc_STRVAR(encode_doc, "encode(kind, weight, rows, cols, cols_padded, tiles, scales, row_sums, residuals, steps=None)\n--\n\n"
                         "Quantize a float32 matrix into a layer's sections; return the flat index of the first weight\n"
                         "that is not finite (or too large for float16), -1 if there is none.");

static PyObject *encode(PyObject *module, PyObject *args) {
    (void)module;
    int kind;
    Py_ssize_t rows, cols, cols_padded;
    PyObject *objects[6] = {NULL, NULL, NULL, NULL, NULL, Py_None};
    static const char *const names[6] = {"weight", "tiles", "scales", "row_sums", "residuals", "steps"};
    static const int bits[NUM_KINDS] = KIND_BITS;
    if (!PyArg_ParseTuple(args, "iOnnnOOOO|O:encode", &kind, &objects[0], &rows, &cols, &cols_padded, &objects[1],
                          &objects[2], &objects[3], &objects[4], &objects[5]))
        return NULL;
    if (kind < 0 || kind >= NUM_KINDS || rows < 1 || cols < 1 || rows > MAX_COLUMNS || cols_padded < cols ||
        cols_padded > ((Py_ssize_t)1 << 32) || cols_padded % 8 || (kind == W4G128A8 && cols_padded % GROUP) ||
        (kind == W2A8 && cols_padded % 16) || (kind == W3A8 && cols_padded % 32))
        return PyErr_Format(PyExc_ValueError, "encode: sizes %zd x %zd (%zd) do not fit kind %d", rows, cols,
                            cols_padded, kind);
    Py_ssize_t padded_rows = (rows + BLOCK - 1) / BLOCK * BLOCK;
    Py_ssize_t groups = kind == W4G128A8 ? cols_padded / GROUP : 1;
    Py_ssize_t sizes[6] = {rows * cols * 4, padded_rows * cols_padded * bits[kind] / 8, padded_rows * groups * 4,
                           padded_rows * 4, padded_rows * 4, rows * 4};
    int needed[6] = {1, 1, kind > FP16, 0, kind > FP16, 0};
    Py_buffer views[6] = {{0}};
    PyObject *result = NULL;
    uint8_t *scratch = malloc((size_t)cols_padded * 17 + 64);
    if (!scratch) return PyErr_NoMemory();
    for (int i = 0; i < 6; i++) {
        if (objects[i] == Py_None && !needed[i]) continue;
        if (get_buffer(objects[i], &views[i], i % 5 ? PyBUF_WRITABLE : PyBUF_SIMPLE, sizes[i], names[i]) < 0) goto done;
    }
    ptrdiff_t bad;
    Py_BEGIN_ALLOW_THREADS;
    bad = encode_layer((enum kind)kind, views[0].buf, rows, cols, cols_padded, views[1].buf, views[2].buf, views[3].buf,
                       views[4].buf, scratch, views[5].buf);
    Py_END_ALLOW_THREADS;
    result = PyLong_FromSsize_t(bad);
done:
    free(scratch);
    for (int i = 0; i < 6; i++)
        if (views[i].obj) PyBuffer_Release(&views[i]);
    return result;
}

uint64_t checksum_of(const kernels *k, const uint8_t *data, ptrdiff_t num_bytes) {
    uint64_t sums[16], total = 0;
    k->checksum(data, num_bytes / 64, sums);
    for (int i = 0; i < 16; i++) {
        total = (total ^ sums[i]) * 0x9E3779B97F4A7C15u;
        total ^= total >> 32;
    }
    return total;
}

PyDoc_STRVAR(checksum_doc, "checksum(buffer)\n--\n\nReturn the 64 bits that pack.checksum defines.");

static PyObject *checksum(PyObject *module, PyObject *buffer) {
    (void)module;
    Py_buffer view;
    if (PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE) < 0) return NULL;
    uint64_t total;
    Py_BEGIN_ALLOW_THREADS;
    total = checksum_of(best_kernels, view.buf, view.len);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLongLong(total);
}

PyDoc_STRVAR(read_doc, "read_seconds(buffer, repeats)\n--\n\nReturn how long each of `repeats` reads of the buffer took.");

static PyObject *read_seconds(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer view;
    int repeats;
    if (!PyArg_ParseTuple(args, "y*i:read_seconds", &view, &repeats)) return NULL;
    const kernels *k = best_kernels;
    PyObject *times = PyList_New(0);
    static volatile uint64_t sink; /* so that no read can be left out */
    for (int i = 0; times && i < repeats; i++) {
        struct timespec begin, end;
        Py_BEGIN_ALLOW_THREADS;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        sink += k->read(view.buf, view.len / 64);
        clock_gettime(CLOCK_MONOTONIC, &end);
        Py_END_ALLOW_THREADS;
        double seconds = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
        PyObject *value = PyFloat_FromDouble(seconds);
        if (!value || PyList_Append(times, value) < 0) Py_CLEAR(times);
        Py_XDECREF(value);
    }
    PyBuffer_Release(&view);
    return times;
}

PyDoc_STRVAR(peak_doc, "products_per_second(floats, repeats)\n--\n\nReturn the multiply-adds a second that this core does without loading anything: integers\n"
                       "or floats; 0 where they were not written with vectors.");

static PyObject *products_per_second(PyObject *module, PyObject *args) {
    (void)module;
    int floats, repeats;
    if (!PyArg_ParseTuple(args, "pi:products_per_second", &floats, &repeats)) return NULL;
    if (!best_kernels->peak[floats]) return PyFloat_FromDouble(0.0);
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    ptrdiff_t products = best_kernels->peak[floats](repeats);
    clock_gettime(CLOCK_MONOTONIC, &end);
    return PyFloat_FromDouble((double)products / ((double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec)));
}

PyDoc_STRVAR(isa_doc, "isa(name='auto')\n--\n\nReturn the kernels' instruction set that a name stands for on this CPU.");

static PyObject *isa(PyObject *module, PyObject *args) {
    (void)module;
    const char *name = "auto", *reason;
    if (!PyArg_ParseTuple(args, "|s:isa", &name)) return NULL;
    const kernels *k = find_kernels(name, &reason);
    if (!k) return PyErr_Format(PyExc_ValueError, "isa '%s' %s", name, reason);
    return PyUnicode_FromString(k->name);
}

static PyMethodDef methods[] = {{"encode", encode, METH_VARARGS, encode_doc},
                                {"convert", convert, METH_VARARGS, convert_doc},
                                {"round_inputs", round_inputs, METH_VARARGS, round_inputs_doc},
                                {"round_weights", round_weights, METH_VARARGS, round_weights_doc},
                                {"checksum", checksum, METH_O, checksum_doc},
                                {"read_seconds", read_seconds, METH_VARARGS, read_doc},
                                {"products_per_second", products_per_second, METH_VARARGS, peak_doc},
                                {"isa", isa, METH_VARARGS, isa_doc},
                                {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "Kernels of quantized policies.", -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    choose_kernels();
    PyObject *module = PyModule_Create(&definition);
    if (module && (PyType_Ready(&engine_type) < 0 || PyModule_AddObjectRef(module, "Engine", (PyObject *)&engine_type) < 0 ||
                   PyModule_AddIntMacro(module, LAYOUT_VERSION) < 0))
        Py_CLEAR(module);
    return module;
}
