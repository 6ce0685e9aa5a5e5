/* Taking weights from a packed buffer, in place or copied, after its header was held against what it must be. */
#define _GNU_SOURCE
#include "engine.h"

#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

enum { VERSION_FIELD = 32, PAYLOAD_FIELD = 48, HEADER_FIELD = 56, HUGE = 2 << 20 };

static void *allocate(Py_ssize_t num_bytes) {
    size_t align = num_bytes >= HUGE ? HUGE : 64;
    size_t size = ((size_t)num_bytes + align - 1) / align * align;
    void *memory = aligned_alloc(align, size);
#ifdef MADV_HUGEPAGE
    if (memory && align == HUGE) madvise(memory, size, MADV_HUGEPAGE); /* a policy in few pages misses no TLB */
#endif
    return memory;
}

static uint64_t take_field(uint8_t *header, int offset) {
    uint64_t value;
    memcpy(&value, header + offset, 8);
    memset(header + offset, 0, 8);
    return value;
}

static int check_header(engine *self, const Py_buffer *view, uint64_t *payload, long long *version) {
    if (view->len < self->num_bytes) return 0;
    memcpy(self->seen, view->buf, (size_t)self->header_bytes);
    uint64_t header = take_field(self->seen, HEADER_FIELD);
    if (checksum_of(self->mlp.kernels, self->seen, self->header_bytes) != header) return 0;
    *payload = take_field(self->seen, PAYLOAD_FIELD);
    *version = (long long)take_field(self->seen, VERSION_FIELD);
    return !memcmp(self->seen, self->header, (size_t)self->header_bytes);
}

static int check_payload(engine *self, const uint8_t *data, uint64_t payload) {
    return checksum_of(self->mlp.kernels, data + self->header_bytes, self->num_bytes - self->header_bytes) == payload;
}

int engine_idle(engine *self) {
    if (!self->busy) return 1;
    PyErr_SetString(PyExc_RuntimeError, "engine is in use by another thread: give each thread its own");
    return 0;
}

static int install(engine *self, PyObject *buffer, int copy, int verify) {
    Py_buffer view;
    uint64_t payload;
    long long version;
    if (PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE) < 0) return -1;
    if (!check_header(self, &view, &payload, &version)) {
        PyObject *none = PyObject_CallOneArg(self->explain, buffer);
        if (none) PyErr_SetString(PyExc_ValueError, "buffer changed while it was loaded: publish and load in turn");
        Py_XDECREF(none);
        PyBuffer_Release(&view);
        return -1;
    }
    uint8_t *data = view.buf;
    copy = copy || (uintptr_t)data % 64;
    if (copy) {
        int spare = self->own[0] && self->mlp.data == self->own[0];
        if (!self->own[spare] && !(self->own[spare] = allocate(self->num_bytes))) {
            PyBuffer_Release(&view);
            PyErr_NoMemory();
            return -1;
        }
        data = self->own[spare];
    }
    int intact;
    self->busy = 1;
    Py_BEGIN_ALLOW_THREADS;
    if (copy) memcpy(data, view.buf, (size_t)self->num_bytes);
    intact = !verify || check_payload(self, data, payload);
    Py_END_ALLOW_THREADS;
    self->busy = 0;
    if (copy || !intact) PyBuffer_Release(&view);
    if (!intact) {
        PyErr_SetString(PyExc_ValueError, "buffer is corrupted: its payload does not match its checksum");
        return -1;
    }
    if (self->source.obj) PyBuffer_Release(&self->source);
    if (!copy) self->source = view;
    self->mlp.data = data;
    self->weights_version = version;
    return 0;
}

const char engine_load_doc[] =
    "load(buffer, *, copy=False, verify=None)\n--\n\n"
                       "Use the weights of a packed buffer from the next call on; see quarl_lib.inference.Engine.";

PyObject *engine_load(engine *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"buffer", "copy", "verify", NULL};
    PyObject *buffer, *verify = Py_None;
    int copy = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$pO:load", names, &buffer, &copy, &verify) || !engine_idle(self)) return NULL;
    int check = verify == Py_None ? copy : PyObject_IsTrue(verify);
    if (check < 0 || install(self, buffer, copy, check) < 0) return NULL;
    Py_RETURN_NONE;
}
