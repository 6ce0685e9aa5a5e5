/* The engine as a Python type: from an observation's buffer to an action in one call. */
#include "engine.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>

enum { RELEASE_GIL_FROM = 32 << 10 };

PyObject *engine_refuse(const bad_value *bad, int batched) {
    char place[64];
    if (bad->layer)
        snprintf(place, sizeof place, "layers[%d][%td]", bad->layer - 1, bad->index);
    else if (batched)
        snprintf(place, sizeof place, "observation[%td, %td]", bad->row, bad->index);
    else
        snprintf(place, sizeof place, "observation[%td]", bad->index);
    const char *text = bad->value != bad->value ? "nan" : bad->value > 0 ? "inf" : "-inf";
    return PyErr_Format(PyExc_ValueError, "%s is %s: it must be finite", place, text);
}

/* Run `n` observations, in chunks of the scratch's rows; write floats to `actions` or indices to `indices`. */
static int act(engine *self, const Py_buffer *view, Py_ssize_t n, float *actions, int64_t *indices, bad_value *bad) {
    mlp *m = &self->mlp;
    ptrdiff_t row = m->layers[0].cols * view->itemsize, outputs = m->layers[m->num_layers - 1].rows;
    const char *observations = view->buf;
    for (Py_ssize_t start = 0; start < n; start += m->batch) {
        int rows = n - start < m->batch ? (int)(n - start) : m->batch;
        int good = 1;
        for (int i = 0; i < rows && good; i++)
            good = mlp_observe(m, i, observations + (start + i) * row, view->itemsize == 8, bad);
        if (!good || !mlp_forward(m, rows, bad)) {
            bad->row += start;
            return 0;
        }
        for (int i = 0; i < rows; i++) {
            ptrdiff_t index = mlp_action(m, i, actions ? actions + (start + i) * outputs : NULL);
            if (indices) indices[start + i] = index;
        }
    }
    return 1;
}

/* Make self->output an array that only this engine holds: the last one if its receiver dropped it, else a new one. */
static float *fresh_output(engine *self) {
    if (self->output && Py_REFCNT(self->output) == 2) return self->output_view.buf; /* ours and the view's */
    if (self->output) {
        PyBuffer_Release(&self->output_view);
        Py_CLEAR(self->output);
    }
    PyObject *output = PyObject_CallNoArgs(self->new_output);
    if (!output) return NULL;
    if (PyObject_GetBuffer(output, &self->output_view, PyBUF_WRITABLE) < 0) {
        Py_DECREF(output);
        return NULL;
    }
    self->output = output;
    return self->output_view.buf;
}

static PyObject *act_on(engine *self, const Py_buffer *observation) {
    mlp *m = &self->mlp;
    int batched = observation->ndim == 2, discrete = m->head == HEAD_ARGMAX || m->head == HEAD_CATEGORICAL;
    Py_ssize_t n = batched ? observation->shape[0] : 1;
    Py_buffer view = {0};
    PyObject *output = NULL;
    float *actions = NULL;
    int64_t index = 0, *indices = discrete ? &index : NULL;
    if (batched) {
        if (!mlp_reserve(m, n < MAX_BATCH ? (int)n : MAX_BATCH)) return PyErr_NoMemory();
        if (!(output = PyObject_CallFunction(self->new_output, "n", n))) return NULL;
        if (PyObject_GetBuffer(output, &view, PyBUF_WRITABLE) < 0) {
            Py_DECREF(output);
            return NULL;
        }
        if (discrete)
            indices = view.buf;
        else
            actions = view.buf;
    } else if (!discrete) {
        if (!(actions = fresh_output(self))) return NULL;
        output = Py_NewRef(self->output);
    }
    bad_value bad;
    int good;
    self->busy = 1;
    if (self->num_bytes * n >= RELEASE_GIL_FROM) { /* below, handing the lock over would cost more than the run */
        Py_BEGIN_ALLOW_THREADS;
        good = act(self, observation, n, actions, indices, &bad);
        Py_END_ALLOW_THREADS;
    } else {
        good = act(self, observation, n, actions, indices, &bad);
    }
    self->busy = 0;
    if (view.obj) PyBuffer_Release(&view);
    if (!good) {
        Py_XDECREF(output);
        return engine_refuse(&bad, batched);
    }
    return output ? output : PyLong_FromLongLong(index);
}

/* Tell whether a buffer is an observation or a batch of them as the policy wants it: float32, or doubles to normalise. */
static int fits(const engine *self, const Py_buffer *view) {
    Py_ssize_t inputs = self->mlp.layers[0].cols;
    char type = view->format && !view->format[1] ? view->format[0] : 0;
    return (type == 'f' || (type == 'd' && self->mlp.mean)) && (uintptr_t)view->buf % view->itemsize == 0 &&
           (view->ndim == 1 || (view->ndim == 2 && view->shape[0] > 0)) && view->shape[view->ndim - 1] == inputs;
}

static PyObject *call(PyObject *callable, PyObject *const *args, size_t flags_and_count, PyObject *names) {
    engine *self = (engine *)callable;
    if (PyVectorcall_NARGS(flags_and_count) != 1 || (names && PyTuple_GET_SIZE(names)))
        return PyErr_Format(PyExc_TypeError, "engine takes one observation, by position");
    if (!self->mlp.data)
        return PyErr_Format(PyExc_ValueError, "the engine has no weights: call load(buffer) first");
    if (!engine_idle(self)) return NULL;
    Py_buffer view;
    if (PyObject_GetBuffer(args[0], &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) == 0) {
        if (fits(self, &view)) {
            PyObject *action = act_on(self, &view);
            PyBuffer_Release(&view);
            return action;
        }
        PyBuffer_Release(&view);
    }
    PyErr_Clear();
    PyObject *converted = PyObject_CallOneArg(self->convert, args[0]), *action = NULL;
    if (!converted) return NULL;
    if (PyObject_GetBuffer(converted, &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) == 0) {
        if (fits(self, &view))
            action = act_on(self, &view);
        else
            PyErr_SetString(PyExc_ValueError, "observation does not fit the policy");
        PyBuffer_Release(&view);
    }
    Py_DECREF(converted);
    return action;
}

/* ---- the type ---- */

/* Take one row of native.py's table; every section must lie in the buffer, for the kernels trust it. */
static int read_layer(engine *self, PyObject *row, layer *l) {
    static const int bits[NUM_KINDS] = KIND_BITS, step[NUM_KINDS] = KIND_STEP;
    int kind, activation;
    if (!PyArg_ParseTuple(row, "innnniiiidnnnnnnnn", &kind, &l->rows, &l->cols, &l->rows_padded, &l->cols_padded,
                          &activation, &l->limit, &l->sparse, &l->layer_norm, &l->eps, &l->weights, &l->scales,
                          &l->row_sums, &l->residuals, &l->bias, &l->norm_scale, &l->norm_offset, &l->input_step))
        return -1;
    l->kind = (enum kind)kind, l->activation = (enum activation)activation;
    int good = kind >= 0 && kind < NUM_KINDS && activation >= 0 && activation < NUM_ACTIVATIONS && l->rows > 0 &&
               l->cols > 0 && l->rows_padded <= MAX_COLUMNS && l->cols_padded <= MAX_COLUMNS &&
               l->rows_padded >= l->rows && l->cols_padded >= l->cols && l->rows_padded % BLOCK == 0 &&
               l->cols_padded % step[kind] == 0;
    ptrdiff_t groups = good && kind == W4G128A8 ? l->cols_padded / GROUP : 1;
    ptrdiff_t ends[8] = {good ? l->weights + l->rows_padded * l->cols_padded * bits[kind] / 8 : 0,
                         l->scales + l->rows_padded * groups * 4, l->row_sums + l->rows_padded * 4,
                         l->residuals + l->rows_padded * 4, l->bias + l->rows_padded * 4,
                         l->norm_scale + l->rows_padded * 4, l->norm_offset + l->rows_padded * 4,
                         l->input_step + BLOCK * 4};
    for (int i = 0; i < 8; i++) good = good && ends[i] >= 0 && ends[i] <= self->num_bytes && ends[i] % 64 == 0;
    if (!good) PyErr_SetString(PyExc_ValueError, "engine: a layer's table does not fit its buffer");
    ptrdiff_t width = (l->cols_padded > l->rows_padded ? l->cols_padded : l->rows_padded) + LIST_ROOM;
    if (good && width > self->mlp.width) self->mlp.width = width;
    return good ? 0 : -1;
}

static int copy_floats(float **to, const Py_buffer *from, int part, ptrdiff_t n) {
    if (!from->len) return 0;
    if (from->len != 16 * n || !(*to = malloc((size_t)n * 4))) return -1;
    memcpy(*to, (const char *)from->buf + part * n * 4, (size_t)n * 4);
    return 0;
}

static int set_up(engine *self, PyObject *layers, const Py_buffer *header, const Py_buffer *bounds, const char *isa) {
    mlp *m = &self->mlp;
    const char *reason;
    Py_ssize_t n = PyTuple_GET_SIZE(layers);
    if (!(m->kernels = find_kernels(isa, &reason))) {
        PyErr_Format(PyExc_ValueError, "isa '%s' %s", isa, reason);
        return -1;
    }
    if (n < 1 || n > MAX_LAYERS || header->len % 64 || header->len < 64 || self->num_bytes % 64) {
        PyErr_Format(PyExc_ValueError, "engine: %zd layers; it runs 1 to %d", n, MAX_LAYERS);
        return -1;
    }
    m->num_layers = (int)n;
    for (Py_ssize_t i = 0; i < n; i++)
        if (read_layer(self, PyTuple_GET_ITEM(layers, i), m->layers + i) < 0) return -1;
    ptrdiff_t actions = m->layers[n - 1].rows;
    self->header_bytes = header->len;
    self->header = malloc((size_t)header->len), self->seen = malloc((size_t)header->len);
    if (!self->header || !self->seen || !mlp_reserve(m, 1) || copy_floats(&m->low, bounds, 0, actions) < 0 ||
        copy_floats(&m->high, bounds, 1, actions) < 0 || copy_floats(&m->middle, bounds, 2, actions) < 0 ||
        copy_floats(&m->half_width, bounds, 3, actions) < 0) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(self->header, header->buf, (size_t)header->len);
    return 0;
}

static PyObject *new_engine(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"layers", "header", "num_bytes", "mean", "inverse_std", "log_std", "clip", "head", "bounds",
                            "seed", "isa", "convert", "new_output", "explain", NULL};
    PyObject *layers, *convert, *new_output, *explain;
    Py_buffer header, bounds;
    const char *isa;
    int head;
    unsigned long long seed;
    engine *self = (engine *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    mlp *m = &self->mlp;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!y*nnnnfiy*KsOOO:Engine", names, &PyTuple_Type, &layers, &header,
                                     &self->num_bytes, &m->mean, &m->inverse_std, &m->log_std, &m->clip, &head, &bounds,
                                     &seed, &isa, &convert, &new_output, &explain)) {
        Py_DECREF(self);
        return NULL;
    }
    m->head = (enum head)head, m->random_state = seed;
    self->weights_version = -1;
    self->vectorcall = call;
    self->spec = Py_NewRef(Py_None), self->precision = Py_NewRef(Py_None), self->reason = PyUnicode_FromString("");
    self->convert = Py_NewRef(convert), self->new_output = Py_NewRef(new_output), self->explain = Py_NewRef(explain);
    int failed = set_up(self, layers, &header, &bounds, isa);
    PyBuffer_Release(&header);
    PyBuffer_Release(&bounds);
    if (failed) Py_CLEAR(self);
    return (PyObject *)self;
}

static void dealloc(engine *self) {
    if (self->source.obj) PyBuffer_Release(&self->source);
    if (self->output) PyBuffer_Release(&self->output_view);
    Py_CLEAR(self->output);
    Py_CLEAR(self->spec);
    Py_CLEAR(self->precision);
    Py_CLEAR(self->reason);
    Py_CLEAR(self->convert);
    Py_CLEAR(self->new_output);
    Py_CLEAR(self->explain);
    mlp_free(&self->mlp);
    free(self->header), free(self->seen), free(self->own[0]), free(self->own[1]);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *get_backend(engine *self, void *closure) {
    (void)self, (void)closure;
    return PyUnicode_FromString("native");
}

static PyObject *get_isa(engine *self, void *closure) {
    (void)closure;
    return PyUnicode_FromString(self->mlp.kernels->name);
}

PyDoc_STRVAR(packed_doc, "packed()\n--\n\nReturn a copy of the buffer in use, None before the first load.");

static PyObject *packed(engine *self, PyObject *unused) {
    (void)unused;
    if (!self->mlp.data) Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)self->mlp.data, self->num_bytes);
}

static PyMethodDef methods[] = {{"packed", (PyCFunction)packed, METH_NOARGS, packed_doc},
                                {"load", (PyCFunction)(void (*)(void))engine_load, METH_VARARGS | METH_KEYWORDS, engine_load_doc},
                                {"layer", (PyCFunction)engine_layer, METH_VARARGS, engine_layer_doc},
                                {NULL, NULL, 0, NULL}};
static PyMemberDef members[] = {
    {"spec", T_OBJECT, offsetof(engine, spec), 0, "the policy's description"},
    {"precision", T_OBJECT, offsetof(engine, precision), 0, "the precision of its weights"},
    {"reason", T_OBJECT, offsetof(engine, reason), 0, "why this backend was chosen"},
    {"weights_version", T_LONGLONG, offsetof(engine, weights_version), READONLY, "version of the loaded weights, -1 before"},
    {"random_state", T_ULONGLONG, offsetof(engine, mlp.random_state), READONLY, "where its draws stand: a seed that goes on"},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(engine, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL}};
static PyGetSetDef getters[] = {{"backend", (getter)get_backend, NULL, "native", NULL},
                                {"isa", (getter)get_isa, NULL, "the instruction set of its kernels", NULL},
                                {NULL, NULL, NULL, NULL, NULL}};

PyTypeObject engine_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "quarl_lib.inference._native.Engine",
    .tp_basicsize = sizeof(engine),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "A policy over packed weights; native.py makes it.",
    .tp_new = new_engine,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(engine, vectorcall),
    .tp_dealloc = (destructor)dealloc,
    .tp_methods = methods,
    .tp_members = members,
    .tp_getset = getters,
};
