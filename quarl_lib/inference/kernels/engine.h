/* The engine's Python type, shared by its two files: acting (engine.c) and loading (load.c). */
#ifndef QUARL_ENGINE_H
#define QUARL_ENGINE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "mlp.h"

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *spec, *precision, *reason;        /* for the reader; native.py sets them */
    PyObject *convert, *new_output, *explain;   /* Python's part: odd observations, output arrays, load errors */
    mlp mlp;
    uint8_t *header, *seen; /* what a buffer's header must be, versions and checksums zero; the one being checked */
    Py_ssize_t header_bytes, num_bytes;
    Py_buffer source;       /* the buffer in use where it was not copied */
    uint8_t *own[2];        /* copies: one in use, one to copy into */
    PyObject *output;       /* the last action, reused if nobody else holds it */
    Py_buffer output_view;
    long long weights_version;
    int busy;
} engine;

extern PyTypeObject engine_type;
uint64_t checksum_of(const kernels *k, const uint8_t *data, ptrdiff_t num_bytes);
int engine_idle(engine *self); /* 0 and a RuntimeError while another thread is inside the engine */
PyObject *engine_refuse(const bad_value *bad, int batched); /* raise ValueError that names the place */
extern const char engine_load_doc[], engine_layer_doc[], convert_doc[], round_inputs_doc[], round_weights_doc[];
const kernels *module_kernels(void); /* for work outside an engine */
PyObject *convert(PyObject *module, PyObject *args);
PyObject *round_inputs(PyObject *module, PyObject *args);
PyObject *round_weights(PyObject *module, PyObject *args);
PyObject *engine_layer(engine *self, PyObject *args);
PyObject *engine_load(engine *self, PyObject *args, PyObject *kwargs);

#endif
