/* SPDX-License-Identifier: Apache-2.0
 * Memory of Python objects: the buffer protocol first, DLPack for what has none (tensors of torch). DLPack's structures are
 * part of its specification (dmlc.github.io/dlpack, version 0), which every producer serves to who asks for no newer one.
 */
#include "python/src/convert.h"

#include <string.h>

typedef struct {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape; /* elements */
    int64_t *strides; /* elements; NULL = C-contiguous */
    uint64_t byte_offset;
} dl_tensor_t;

/* What the capsule "dltensor" holds; the producer's deleter frees it when the capsule dies unused, so we never call it. */
typedef struct {
    dl_tensor_t tensor;
    void *manager;
    void (*deleter)(void *self);
} dl_managed_t;

/* Whether it is C-contiguous, and how many elements it has. */
static bool
count_elements(const dl_tensor_t *t, uint64_t *n_out)
{
    uint64_t n = 1;

    for (int32_t i = t->ndim; i-- > 0;) {
        if (t->shape[i] < 0) return false;
        if (t->strides != NULL && t->shape[i] > 1 && (uint64_t)t->strides[i] != n) return false;
        if (__builtin_mul_overflow(n, (uint64_t)t->shape[i], &n)) return false;
    }
    *n_out = n;
    return true;
}

static bool
take_capsule(kvpy_mem_t *mem, PyObject *capsule)
{
    const dl_managed_t *managed = PyCapsule_GetPointer(capsule, "dltensor");
    uint64_t n, bits;

    if (managed == NULL) return false;
    if (!count_elements(&managed->tensor, &n)) {
        PyErr_SetString(PyExc_BufferError, "the tensor is not contiguous");
        return false;
    }
    if (__builtin_mul_overflow(n, (uint64_t)managed->tensor.dtype.bits * managed->tensor.dtype.lanes, &bits)) {
        PyErr_SetString(PyExc_BufferError, "the tensor is larger than memory");
        return false;
    }
    mem->addr = (char *)managed->tensor.data + managed->tensor.byte_offset;
    mem->len = (size_t)((bits + 7) / 8);
    return true;
}

static bool
take_dlpack(kvpy_mem_t *mem, PyObject *obj)
{
    PyObject *capsule = PyObject_CallMethod(obj, "__dlpack__", NULL);

    if (capsule == NULL) return false;
    if (!take_capsule(mem, capsule)) {
        Py_DECREF(capsule);
        return false;
    }
    mem->capsule = capsule;
    return true;
}

bool
kvpy_mem_init(kvpy_mem_t *mem, PyObject *obj, bool is_written)
{
    memset(mem, 0, sizeof *mem);
    if (PyObject_CheckBuffer(obj)) {
        if (PyObject_GetBuffer(obj, &mem->view, is_written ? PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS : PyBUF_C_CONTIGUOUS) <
            0)
            return false;
        mem->addr = mem->view.buf;
        mem->len = (size_t)mem->view.len;
        return true;
    }
    if (PyObject_HasAttrString(obj, "__dlpack__")) return take_dlpack(mem, obj);
    PyErr_Format(PyExc_TypeError, "%.100s has neither the buffer protocol nor DLPack", Py_TYPE(obj)->tp_name);
    return false;
}

void
kvpy_mem_fini(kvpy_mem_t *mem)
{
    if (mem->view.obj != NULL) PyBuffer_Release(&mem->view);
    Py_CLEAR(mem->capsule);
}
