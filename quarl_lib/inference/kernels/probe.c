/* One layer alone, with its codes and sums: for the tests. */
#include "engine.h"

#include <string.h>

const char engine_layer_doc[] =
    "layer(index, x)\n--\n\n"
                        "Run one layer on float32 x; return bytes of its int16 codes, int32 sums [groups, rows_padded],\n"
                        "and float32 outputs: what the tests hold against the reference.";

PyObject *engine_layer(engine *self, PyObject *args) {
    int index;
    Py_buffer x;
    mlp *m = &self->mlp;
    if (!PyArg_ParseTuple(args, "iy*:layer", &index, &x)) return NULL;
    PyObject *result = NULL, *codes = NULL, *sums = NULL;
    if (!m->data || index < 0 || index >= m->num_layers || x.len != m->layers[index].cols * 4) {
        PyErr_SetString(PyExc_ValueError, "layer: no weights, no such layer, or another number of inputs");
        goto done;
    }
    const layer *l = m->layers + index;
    ptrdiff_t groups = l->kind == W4G128A8 ? l->cols_padded / GROUP : 1;
    codes = PyBytes_FromStringAndSize(NULL, l->cols * 2);
    sums = PyBytes_FromStringAndSize(NULL, groups * l->rows_padded * 4);
    if (!codes || !sums) goto done;
    memset(PyBytes_AS_STRING(sums), 0, (size_t)(groups * l->rows_padded * 4));
    memcpy(m->x, x.buf, (size_t)x.len);
    bad_value bad;
    if (!mlp_layer(m, index, 1, (int32_t *)PyBytes_AS_STRING(sums), &bad)) {
        engine_refuse(&bad, 0);
        goto done;
    }
    int16_t *codes_out = (int16_t *)PyBytes_AS_STRING(codes);
    for (ptrdiff_t i = 0; i < l->cols; i++) {
        const int8_t *bytes = m->codes;
        int offset = l->kind == W8A8 ? ZERO_POINT + m->kernels->byte_offset : 0;
        int is_unsigned = l->kind == W8U8 || (l->kind == W8A8 && !m->kernels->byte_offset);
        codes_out[i] = l->kind == W8A16 ? ((int16_t *)m->codes)[i]
                                        : (int16_t)((is_unsigned ? (uint8_t)bytes[i] : bytes[i]) - offset);
    }
    result = Py_BuildValue("OOy#", codes, sums, m->y, (Py_ssize_t)(l->rows * 4));
done:
    Py_XDECREF(codes);
    Py_XDECREF(sums);
    PyBuffer_Release(&x);
    return result;
}
