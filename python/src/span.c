/* SPDX-License-Identifier: Apache-2.0
 * Span: bytes at an address as a writable object of the buffer protocol. A span keeps the owner of the memory alive
 * and counts its exported buffers. Leases and handles of mooncake.store return spans. */
#include "python/src/convert.h"

#include <stddef.h>

typedef struct {
    PyObject_HEAD PyObject *owner; /* owner of the memory; NULL = the span was ended */
    void *addr;
    size_t len;
    Py_ssize_t exports_n;
} kvpy_span_t;

/* Span(address, length, owner): makes a span */
static PyObject *
span_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
    PyObject *addr_obj, *len_obj, *owner;
    uint64_t addr, len;
    kvpy_span_t *self;

    if (kw != NULL && PyDict_Size(kw) > 0) {
        PyErr_SetString(PyExc_TypeError, "Span takes no keywords");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OOO", &addr_obj, &len_obj, &owner)) return NULL;
    if (!kvpy_uint(addr_obj, UINTPTR_MAX, "an address", &addr) || !kvpy_uint(len_obj, PY_SSIZE_T_MAX, "a length", &len))
        return NULL;
    self = (kvpy_span_t *)PyType_GenericAlloc(type, 0);
    if (self == NULL) return NULL;
    Py_INCREF(owner);
    self->owner = owner;
    self->addr = (void *)(uintptr_t)addr;
    self->len = (size_t)len;
    return (PyObject *)self;
}

static void
span_dealloc(kvpy_span_t *self)
{
    Py_CLEAR(self->owner);
    kvpy_free_object(self);
}

static int
span_getbuffer(kvpy_span_t *self, Py_buffer *buf, int flags)
{
    if (self->owner == NULL) {
        buf->obj = NULL;
        PyErr_SetString(PyExc_BufferError, "the memory was given back");
        return -1;
    }
    if (PyBuffer_FillInfo(buf, (PyObject *)self, self->addr, (Py_ssize_t)self->len, 0, flags) < 0) return -1;
    self->exports_n++;
    return 0;
}

static void
span_releasebuffer(kvpy_span_t *self, Py_buffer *Py_UNUSED(buf))
{
    self->exports_n--;
}

/* end() -> True if no buffer of the span is exported; the span then ends and exports none any more. Else False */
static PyObject *
span_end(kvpy_span_t *self, PyObject *Py_UNUSED(args))
{
    if (self->exports_n > 0) Py_RETURN_FALSE;
    Py_CLEAR(self->owner);
    Py_RETURN_TRUE;
}

static Py_ssize_t
span_length(kvpy_span_t *self)
{
    return (Py_ssize_t)self->len;
}

/* address() -> int: the address of the memory */
static PyObject *
span_address(kvpy_span_t *self, PyObject *Py_UNUSED(args))
{
    return PyLong_FromVoidPtr(self->addr);
}

static PyMethodDef methods[] = {
    {"end", (PyCFunction)(void (*)(void))span_end, METH_NOARGS, NULL},
    {"address", (PyCFunction)(void (*)(void))span_address, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)"Memory of an owner, by the buffer protocol."},
    {Py_tp_new, span_new},
    {Py_tp_dealloc, span_dealloc},
    {Py_tp_methods, methods},
    {Py_bf_getbuffer, span_getbuffer},
    {Py_bf_releasebuffer, span_releasebuffer},
    {Py_sq_length, span_length},
    {0, NULL},
};

PyType_Spec kvpy_span_spec = {"kvpool._kvpool.Span", sizeof(kvpy_span_t), 0, KVPY_TYPE_FLAGS | Py_TPFLAGS_BASETYPE,
                              slots};
