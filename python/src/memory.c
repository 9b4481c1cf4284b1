/* SPDX-License-Identifier: Apache-2.0
 * Memory of Python objects: the buffer protocol first, DLPack for what has none (tensors of torch). DLPack's structures are part of its
 * specification (dmlc.github.io/dlpack): those of version 1, which say what is read-only, and those before it, which cannot.
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

/* What the capsule "dltensor" begins with; the producer's deleter frees it when the capsule dies unused, so we never call it. */
typedef struct {
    dl_tensor_t tensor;
} dl_managed_t;

/* What the capsule "dltensor_versioned" holds. */
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

/* What lies there are handles of whoever made it. */
#define DL_OPAQUE 3u

/* Devices whose data is an address that this process, or CUDA in it, knows. That of others is a handle of theirs. */
enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_ROCM_HOST = 11, DL_CUDA_MANAGED = 13 };

static bool
has_address(int32_t device)
{
    return device == DL_CPU || device == DL_CUDA || device == DL_CUDA_HOST || device == DL_ROCM_HOST ||
           device == DL_CUDA_MANAGED;
}

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
refuse(const char *why)
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
    if (!count_elements(t, &n)) return refuse("the tensor is not contiguous (C order)");
    if (__builtin_mul_overflow(n, (uint64_t)t->dtype.bits * t->dtype.lanes, &bits) || bits > SIZE_MAX - 7)
        return refuse("the tensor is larger than memory");
    mem->is_device = t->device.type == DL_CUDA;
    mem->addr = (char *)t->data + t->byte_offset;
    mem->len = (size_t)((bits + 7) / 8);
    return true;
}

static bool
take_versioned(kvpy_mem_t *mem, const dl_versioned_t *v, bool is_written)
{
    if (v->major != DL_MAJOR) return refuse("the tensor comes by a version of DLPack that is not known here");
    if (is_written && (v->flags & DL_READ_ONLY) != 0) return refuse("the tensor is read-only");
    if (is_written && (v->flags & DL_IS_COPIED) != 0)
        return refuse("the tensor comes as a copy, which nobody would see");
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

/* Asks for version 1 first. Producers that are older than that know no such argument. */
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

/* Whether a format (PEP 3118) has Python objects or pointers in it: bytes that are got over these end the process when they are used next,
 * and nobody else can use them. Names of fields, ":like this:", may be of any letters; "Zd" is a complex number. */
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

/* The same of an array of numpy that has no format, as those with dates or text of any length in them. */
static bool
has_objects(PyObject *obj)
{
    PyObject *dtype = PyObject_GetAttrString(obj, "dtype");
    PyObject *has = dtype != NULL ? PyObject_GetAttrString(dtype, "hasobject") : NULL;
    bool is_true = has != NULL && PyObject_IsTrue(has) == 1;

    PyErr_Clear(); /* of what is no array */
    Py_XDECREF(has);
    Py_XDECREF(dtype);
    return is_true;
}

/* Any strides are asked for, so that what is refused is refused by the caller, in the same words whoever made the object. */
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
        return refuse(is_readonly ? "the memory is read-only" : "the memory is not contiguous (C order)");
    }
    mem->addr = mem->view.buf;
    mem->len = (size_t)mem->view.len;
    return true;
}

bool
kvpy_mem_init(kvpy_mem_t *mem, PyObject *obj, bool is_written)
{
    memset(mem, 0, sizeof *mem);
    if (PyObject_CheckBuffer(obj)) return take_buffer(mem, obj, is_written);
    if (PyObject_HasAttrString(obj, "__dlpack__")) return take_dlpack(mem, obj, is_written);
    PyErr_Format(PyExc_TypeError, "%.100s has neither the buffer protocol nor DLPack", Py_TYPE(obj)->tp_name);
    return false;
}

void
kvpy_mem_fini(kvpy_mem_t *mem)
{
    if (mem->view.obj != NULL) PyBuffer_Release(&mem->view);
    Py_CLEAR(mem->capsule);
}
