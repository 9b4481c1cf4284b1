/* SPDX-License-Identifier: Apache-2.0
 * The memory of Python objects: by the buffer protocol, or by DLPack for objects without it (tensors of torch).
 * DLPack's structures are part of its specification (dmlc.github.io/dlpack). Both forms are supported: version 1,
 * which marks read-only memory, and the older one, which cannot. */
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
    int64_t *shape; /* number of elements in each dimension */
    int64_t *strides; /* stride of each dimension, in elements; NULL = C-contiguous */
    uint64_t byte_offset;
} dl_tensor_t;

/* The beginning of the struct in a capsule "dltensor". The producer's deleter frees the tensor when the capsule is
 * destroyed unused, so the code here never calls the deleter. */
typedef struct {
    dl_tensor_t tensor;
} dl_managed_t;

/* The struct in a capsule "dltensor_versioned". */
typedef struct {
    uint32_t major, minor;
    void *manager;
    void (*deleter)(void *self);
    uint64_t flags;
    dl_tensor_t tensor;
} dl_versioned_t;

#define DL_MAJOR 1u
#define DL_READ_ONLY 1u
#define DL_IS_COPIED 2u

/* DLPack's type code of elements that are handles, with a meaning only for the producer of the tensor */
#define DL_OPAQUE 3u

/* DLPack's device types whose data is an address that this process, or CUDA in this process, can use. The data of any
 * other device is an opaque handle. */
enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_ROCM_HOST = 11, DL_CUDA_MANAGED = 13 };

static bool
has_address(int32_t device)
{
    return device == DL_CPU || device == DL_CUDA || device == DL_CUDA_HOST || device == DL_ROCM_HOST ||
           device == DL_CUDA_MANAGED;
}

/* Counts the elements of a tensor. Returns false if the tensor is not C-contiguous. */
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
refuse_memory(const char *why)
{
    PyErr_SetString(PyExc_BufferError, why);
    return false;
}

static bool
refuse_addresses(void)
{
    PyErr_SetString(PyExc_TypeError, "the memory holds Python objects or pointers, which only this process can use");
    return false;
}

static bool
take_tensor(kvpy_mem_t *mem, const dl_tensor_t *t)
{
    uint64_t n, bits;

    if (!has_address(t->device.type)) {
        PyErr_Format(PyExc_BufferError,
                     "the tensor lies on a device of DLPack's type %d, which the pool cannot address",
                     (int)t->device.type);
        return false;
    }
    if (t->dtype.code == DL_OPAQUE) return refuse_addresses();
    if (!count_elements(t, &n)) return refuse_memory("the tensor is not contiguous (C order)");
    if (__builtin_mul_overflow(n, (uint64_t)t->dtype.bits * t->dtype.lanes, &bits) || bits > SIZE_MAX - 7)
        return refuse_memory("the tensor is larger than memory");
    mem->is_device = t->device.type == DL_CUDA;
    mem->addr = (char *)t->data + t->byte_offset;
    mem->len = (size_t)((bits + 7) / 8);
    return true;
}

static bool
take_versioned(kvpy_mem_t *mem, const dl_versioned_t *v, bool is_written)
{
    if (v->major != DL_MAJOR) return refuse_memory("the tensor comes by a version of DLPack that is not known here");
    if (is_written && (v->flags & DL_READ_ONLY) != 0) return refuse_memory("the tensor is read-only");
    if (is_written && (v->flags & DL_IS_COPIED) != 0)
        return refuse_memory("the tensor comes as a copy, which nobody would see");
    return take_tensor(mem, &v->tensor);
}

static bool
take_capsule(kvpy_mem_t *mem, PyObject *capsule, bool is_written)
{
    const dl_managed_t *managed;

    if (PyCapsule_IsValid(capsule, "dltensor_versioned"))
        return take_versioned(mem, PyCapsule_GetPointer(capsule, "dltensor_versioned"), is_written);
    if (!PyCapsule_IsValid(capsule, "dltensor")) {
        PyErr_SetString(PyExc_TypeError, "__dlpack__ returned no tensor");
        return false;
    }
    managed = PyCapsule_GetPointer(capsule, "dltensor");
    return take_tensor(mem, &managed->tensor);
}

/* Calls obj.__dlpack__, first for version 1. Older producers do not know the argument max_version, so the call is
 * then repeated without it. */
static PyObject *
call_dlpack(PyObject *obj)
{
    PyObject *method = PyObject_GetAttrString(obj, "__dlpack__");
    PyObject *none = PyTuple_New(0), *kw = Py_BuildValue("{s(II)}", "max_version", DL_MAJOR, 0u);
    PyObject *capsule = NULL;

    if (method != NULL && none != NULL && kw != NULL) {
        capsule = PyObject_Call(method, none, kw);
        if (capsule == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear();
            capsule = PyObject_Call(method, none, NULL);
        }
    }
    Py_XDECREF(method);
    Py_XDECREF(none);
    Py_XDECREF(kw);
    return capsule;
}

static bool
take_dlpack(kvpy_mem_t *mem, PyObject *obj, bool is_written)
{
    PyObject *capsule = call_dlpack(obj);

    if (capsule == NULL) return false;
    if (!take_capsule(mem, capsule, is_written)) {
        Py_DECREF(capsule);
        return false;
    }
    mem->capsule = capsule;
    return true;
}

/* Returns true if a format (PEP 3118) has Python objects or pointers. A get into such memory would crash the process
 * when they are used next, and no other process can use them. Names of fields, ":like this:", may have any letters;
 * "Zd" is a complex number. */
static bool
has_addresses(const char *format)
{
    for (const char *p = format; *p != '\0'; p++) {
        if (*p == ':') {
            p = strchr(p + 1, ':');
            if (p == NULL) return false;
        } else if (*p == 'Z' && p[1] != '\0' && strchr("fdg", p[1]) != NULL) {
            p++;
        } else if (strchr("OP&XzZ", *p) != NULL) {
            return true;
        }
    }
    return false;
}

/* Returns true if obj is a numpy array with Python objects. Arrays without a format, for example with dates or with
 * text of any length, need this check. */
static bool
has_objects(PyObject *obj)
{
    PyObject *dtype = PyObject_GetAttrString(obj, "dtype");
    PyObject *has = dtype != NULL ? PyObject_GetAttrString(dtype, "hasobject") : NULL;
    bool is_true = has != NULL && PyObject_IsTrue(has) == 1;

    PyErr_Clear(); /* an object that is no array has no dtype */
    Py_XDECREF(has);
    Py_XDECREF(dtype);
    return is_true;
}

/* Gets the object's buffer with any strides, so that the caller refuses unfit memory with the same message for every
 * kind of object. */
static bool
get_buffer(Py_buffer *view, PyObject *obj)
{
    if (PyObject_GetBuffer(obj, view, PyBUF_INDIRECT | PyBUF_FORMAT) == 0) {
        if (view->format == NULL || !has_addresses(view->format)) return true;
        PyBuffer_Release(view);
        return refuse_addresses();
    }
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;
    PyErr_Clear();
    if (has_objects(obj)) return refuse_addresses();
    return PyObject_GetBuffer(obj, view, PyBUF_INDIRECT) == 0;
}

static bool
take_buffer(kvpy_mem_t *mem, PyObject *obj, bool is_written)
{
    if (!get_buffer(&mem->view, obj)) return false;
    if ((is_written && mem->view.readonly) || !PyBuffer_IsContiguous(&mem->view, 'C')) {
        bool is_readonly = is_written && mem->view.readonly;

        PyBuffer_Release(&mem->view);
        return refuse_memory(is_readonly ? "the memory is read-only" : "the memory is not contiguous (C order)");
    }
    mem->addr = mem->view.buf;
    mem->len = (size_t)mem->view.len;
    return true;
}

bool
kvpy_mem_init(kvpy_mem_t *mem, PyObject *obj, bool is_written)
{
    PyObject *name;

    memset(mem, 0, sizeof *mem);
    if (PyObject_CheckBuffer(obj)) return take_buffer(mem, obj, is_written);
    if (PyObject_HasAttrString(obj, "__dlpack__")) return take_dlpack(mem, obj, is_written);
    name = kvpy_type_name(obj);
    if (name != NULL) PyErr_Format(PyExc_TypeError, "%.100S has neither the buffer protocol nor DLPack", name);
    Py_XDECREF(name);
    return false;
}

void
kvpy_mem_fini(kvpy_mem_t *mem)
{
    if (mem->view.obj != NULL) PyBuffer_Release(&mem->view);
    Py_CLEAR(mem->capsule);
}
