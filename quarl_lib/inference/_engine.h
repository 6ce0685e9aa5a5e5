#ifndef QUARL_ENGINE_H
#define QUARL_ENGINE_H

#include <Python.h>

#include "_mlp.h"

extern PyTypeObject engine_type;
uint64_t checksum_of(const kernels *k, const uint8_t *data, ptrdiff_t num_bytes);

#endif
