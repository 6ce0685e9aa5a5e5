/* Floats onto an engine's grid and back, for a learner that computes as its actors do; one matrix a call. */
#include "engine.h"

#include <stdlib.h>

static int sizes_fit(const char *name, Py_ssize_t rows, Py_ssize_t cols, const Py_buffer *view) {
    if (rows >= 0 && cols >= 1 && cols <= MAX_COLUMNS && rows <= PY_SSIZE_T_MAX / 4 / cols && view->len >= rows * cols * 4 &&
        (uintptr_t)view->buf % 4 == 0)
        return 1;
    PyErr_Format(PyExc_ValueError, "%s: %zd bytes at %p cannot hold %zd x %zd floats", name, view->len, view->buf, rows, cols);
    return 0;
}

const char round_inputs_doc[] =
    "round_inputs(x, rows, cols, limit)\n--\n\n"
    "Round each row of a float32 matrix in place as a layer rounds its input, `limit` being the largest code. A row with\n"
    "a NaN or an infinity becomes NaN.";

PyObject *round_inputs(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer view;
    Py_ssize_t rows, cols;
    int limit;
    if (!PyArg_ParseTuple(args, "w*nni:round_inputs", &view, &rows, &cols, &limit)) return NULL;
    int good = sizes_fit("round_inputs", rows, cols, &view);
    if (good && (limit < 1 || limit > INT16_MAX)) {
        PyErr_Format(PyExc_ValueError, "round_inputs: limit=%d, give 1 to %d", limit, INT16_MAX);
        good = 0;
    }
    if (good) {
        const kernels *k = module_kernels();
        float *x = view.buf;
        Py_BEGIN_ALLOW_THREADS;
        for (ptrdiff_t r = 0; r < rows; r++, x += cols) {
            float scale, inverse = mlp_activation_scale(k->absmax_bits(x, cols), limit, &scale);
            k->round_input(x, cols, inverse, scale);
        }
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&view);
    return good ? Py_NewRef(Py_None) : NULL;
}

const char round_weights_doc[] =
    "round_weights(weight, rows, cols, bits, out)\n--\n\n"
    "Write the float32 matrix that an engine's layer of so many bits (8, 4, 3 or 2) computes with.";

PyObject *round_weights(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer from, to;
    Py_ssize_t rows, cols;
    int bits;
    if (!PyArg_ParseTuple(args, "y*nniw*:round_weights", &from, &rows, &cols, &bits, &to)) return NULL;
    int good = sizes_fit("round_weights", rows, cols, &from) && sizes_fit("round_weights", rows, cols, &to);
    if (good && bits != 8 && (bits < 2 || bits > 4)) {
        PyErr_Format(PyExc_ValueError, "round_weights: bits=%d, give 8, 4, 3 or 2", bits);
        good = 0;
    }
    uint8_t *scratch = good ? malloc((size_t)cols + 64) : NULL;
    if (good && !scratch) PyErr_NoMemory();
    if (scratch) {
        const kernels *k = module_kernels();
        Py_BEGIN_ALLOW_THREADS;
        for (ptrdiff_t r = 0; r < rows; r++)
            k->round_weights((const float *)from.buf + r * cols, cols, bits == 8 ? 0 : 1 << bits, scratch, (float *)to.buf + r * cols);
        Py_END_ALLOW_THREADS;
        free(scratch);
    }
    PyBuffer_Release(&from), PyBuffer_Release(&to);
    return good && scratch ? Py_NewRef(Py_None) : NULL;
}
