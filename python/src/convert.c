/* SPDX-License-Identifier: Apache-2.0 */
#include "python/src/convert.h"

#include <string.h>

PyObject *
kvpy_type_name(PyObject *obj)
{
    return PyObject_GetAttrString((PyObject *)Py_TYPE(obj), "__name__"); /* PyType_GetName comes with Python 3.11 */
}

bool
kvpy_type_error(const char *what, const char *wanted, PyObject *obj)
{
    PyObject *name = kvpy_type_name(obj);

    if (name != NULL) PyErr_Format(PyExc_TypeError, "%s is %s, not %.100S", what, wanted, name);
    Py_XDECREF(name);
    return false;
}

PyObject *
kvpy_tuple(PyObject *obj, const char *why)
{
    PyObject *fast = PySequence_Fast(obj, why); /* may be the caller's list, which other code can change: copy it */
    PyObject *tuple = fast != NULL ? PySequence_Tuple(fast) : NULL;

    Py_XDECREF(fast);
    return tuple;
}

bool
kvpy_key(PyObject *obj, kvpool_key_t *key_out)
{
    Py_ssize_t len = 0;
    char *bytes = NULL;

    /* exact types first, because the check of a subclass is a call in the limited API */
    if (PyUnicode_CheckExact(obj) || (!PyBytes_CheckExact(obj) && PyUnicode_Check(obj)))
        key_out->data = PyUnicode_AsUTF8AndSize(obj, &len);
    else if (PyBytes_CheckExact(obj) || PyBytes_Check(obj))
        key_out->data = PyBytes_AsStringAndSize(obj, &bytes, &len) == 0 ? bytes : NULL;
    else
        return kvpy_type_error("a key", "str or bytes", obj);
    key_out->len = (size_t)len;
    return key_out->data != NULL;
}

bool
kvpy_uint(PyObject *obj, uint64_t max, const char *what, uint64_t *value_out)
{
    unsigned long long value;

    if (PyLong_CheckExact(obj)) {
        value = PyLong_AsUnsignedLongLong(obj);
    } else {
        PyObject *number;

        if (PyBool_Check(obj) || PyFloat_Check(obj) || !PyIndex_Check(obj)) return kvpy_type_error(what, "an int", obj);
        number = PyNumber_Index(obj);
        if (number == NULL) return false;
        value = PyLong_AsUnsignedLongLong(number);
        Py_DECREF(number);
    }
    if (value == (unsigned long long)-1 && PyErr_Occurred()) return false;
    if (value > max) {
        PyErr_Format(PyExc_OverflowError, "%s is %llu at most, not %llu", what, (unsigned long long)max, value);
        return false;
    }
    *value_out = value;
    return true;
}

int
kvpy_u32(PyObject *obj, void *value_out)
{
    uint64_t value;

    if (!kvpy_uint(obj, UINT32_MAX, "a number of 32 bits", &value)) return 0;
    *(uint32_t *)value_out = (uint32_t)value;
    return 1;
}

bool
kvpy_segments(PyObject *tuple, uint32_t ids_out[KVPOOL_COPIES_MAX], uint32_t *n_out)
{
    Py_ssize_t n = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : -1;

    if (n < 0 || n > KVPOOL_COPIES_MAX) {
        PyErr_Format(PyExc_ValueError, "segments are a tuple of at most %d ids", KVPOOL_COPIES_MAX);
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        if (!kvpy_u32(PyTuple_GetItem(tuple, i), &ids_out[i])) return false;
    *n_out = (uint32_t)n;
    return true;
}

int
kvpy_u64(PyObject *obj, void *value_out)
{
    return kvpy_uint(obj, UINT64_MAX, "a number of 64 bits", value_out);
}

bool
kvpy_lineage(PyObject *obj, kvpool_lineage_t *lineage_out)
{
    if (!PyTuple_Check(obj)) return kvpy_type_error("a lineage", "a tuple", obj);
    return PyArg_ParseTuple(obj, "O&O&O&;a lineage is (sequence, parent, depth)", kvpy_u64, &lineage_out->sequence,
                            kvpy_u64, &lineage_out->parent, kvpy_u32, &lineage_out->depth) != 0;
}

/* Returns true for a list or another sequence; else sets TypeError. A str or bytes object is a sequence as well, but
 * callers never mean it as a list. */
static bool
check_list(PyObject *obj, const char *what)
{
    if (!PyUnicode_Check(obj) && !PyBytes_Check(obj) && PySequence_Check(obj)) return true;
    return kvpy_type_error(what, "a list", obj);
}

bool
kvpy_keys_init(kvpy_keys_t *k, PyObject *list)
{
    memset(k, 0, sizeof *k);
    if (!check_list(list, "keys")) return false;
    k->held = PySequence_Tuple(list);
    if (k->held == NULL) return false;
    k->n = PyTuple_Size(k->held);
    k->keys = PyMem_New(kvpool_key_t, (size_t)k->n + 1);
    if (k->keys == NULL) {
        PyErr_NoMemory();
        goto fail;
    }
    for (Py_ssize_t i = 0; i < k->n; i++)
        if (!kvpy_key(PyTuple_GetItem(k->held, i), &k->keys[i])) goto fail;
    return true;

fail:
    kvpy_keys_fini(k);
    return false;
}

void
kvpy_keys_fini(kvpy_keys_t *k)
{
    PyMem_Free(k->keys);
    Py_CLEAR(k->held);
    k->keys = NULL;
}

/* ---- items of a batch */
static bool
is_list(PyObject *obj)
{
    return !PyLong_CheckExact(obj) && (PyList_Check(obj) || PyTuple_Check(obj));
}

static bool
check_lengths(Py_ssize_t keys, Py_ssize_t addrs, Py_ssize_t sizes, const char *of)
{
    if (keys == addrs && addrs == sizes) return true;
    PyErr_Format(PyExc_ValueError, "%zd %s, %zd buffers and %zd sizes", keys, of, addrs, sizes);
    return false;
}

/* Copies the caller's list, with its inner lists as tuples, because other code may change the lists while a method of
 * an object runs. Sets *pieces_out to the number of pieces. NULL with an exception set. */
static PyObject *
freeze_list(PyObject *obj, const char *what, Py_ssize_t *pieces_out)
{
    PyObject *outer = check_list(obj, what) ? PySequence_List(obj) : NULL;

    *pieces_out = outer != NULL ? PyList_Size(outer) : 0;
    for (Py_ssize_t i = 0, n = *pieces_out; outer != NULL && i < n; i++) {
        PyObject *inner = PyList_GetItem(outer, i), *frozen;

        if (!is_list(inner)) continue;
        frozen = PySequence_Tuple(inner);
        if (frozen != NULL) *pieces_out += PyTuple_Size(frozen) - 1;
        kvpy_list_set(&outer, i, frozen);
    }
    return outer;
}

/* Converts address and size of one piece of an item. size NULL: addr is a Python object whose memory is the piece. */
static bool
take_piece(kvpy_items_t *it, PyObject *addr, PyObject *size, bool is_written, kvpool_iov_t *piece)
{
    uint64_t value, len;
    kvpy_mem_t *mem;

    if (size != NULL) {
        if (!kvpy_uint(addr, UINTPTR_MAX, "an address", &value) || !kvpy_uint(size, SIZE_MAX, "a size", &len))
            return false;
        *piece = (kvpool_iov_t){(void *)(uintptr_t)value, (size_t)len};
        return true;
    }
    mem = &it->mems[it->mems_n];
    if (!kvpy_mem_init(mem, addr, is_written)) return false;
    it->mems_n++;
    *piece = (kvpool_iov_t){mem->addr, mem->len};
    return true;
}

static bool
take_inner(kvpy_items_t *it, PyObject *addrs, PyObject *sizes, bool is_written, kvpool_iov_t *pieces, size_t *n_out)
{
    Py_ssize_t n = PyTuple_Size(addrs);
    size_t used = 0;

    if (sizes != NULL) {
        if (!PyTuple_Check(sizes)) {
            PyErr_SetString(PyExc_TypeError, "the sizes of a list of buffers are a list");
            return false;
        }
        if (!check_lengths(n, n, PyTuple_Size(sizes), "pieces")) return false;
    }
    for (Py_ssize_t k = 0; k < n; k++) {
        if (!take_piece(it, PyTuple_GetItem(addrs, k), sizes != NULL ? PyTuple_GetItem(sizes, k) : NULL, is_written,
                        &pieces[used]))
            return false;
        if (pieces[used].len > 0) used++; /* empty pieces are left out */
    }
    *n_out = used;
    return true;
}

/* Fills the items. addrs and sizes are our own lists from freeze_list, with inner tuples. */
static bool
take_items(kvpy_items_t *it, PyObject *addrs, PyObject *sizes, bool is_written)
{
    kvpool_iov_t *pieces = it->pieces;

    for (Py_ssize_t i = 0; i < it->keys.n; i++) {
        PyObject *addr = PyList_GetItem(addrs, i);
        PyObject *size = sizes != NULL ? PyList_GetItem(sizes, i) : NULL;
        kvpool_item_t *item = &it->items[i];
        size_t n = 1;

        if (PyTuple_CheckExact(addr) ? !take_inner(it, addr, size, is_written, pieces, &n)
                                     : !take_piece(it, addr, size, is_written, pieces))
            return false;
        *item = (kvpool_item_t){.key = it->keys.keys[i], .iov = pieces, .iov_n = n};
        pieces += n;
    }
    return true;
}

static bool
items_alloc(kvpy_items_t *it, size_t pieces_n, bool has_mems)
{
    size_t n = (size_t)it->keys.n;

    it->items = PyMem_New(kvpool_item_t, n + 1);
    it->results = PyMem_New(int, n + 1);
    it->pieces = PyMem_New(kvpool_iov_t, pieces_n + 1);
    if (has_mems) it->mems = PyMem_New(kvpy_mem_t, pieces_n + 1);
    if (it->items != NULL && it->results != NULL && it->pieces != NULL && (it->mems != NULL || !has_mems)) return true;
    PyErr_NoMemory();
    return false;
}

bool
kvpy_items_init(kvpy_items_t *it, PyObject *keys, PyObject *addrs, PyObject *sizes, bool is_written)
{
    PyObject *own_addrs = NULL, *own_sizes = NULL;
    Py_ssize_t pieces_n, sizes_n;
    bool is_ok = false;

    memset(it, 0, sizeof *it);
    if (!kvpy_keys_init(&it->keys, keys)) return false;
    own_addrs = freeze_list(addrs, "buffers", &pieces_n);
    if (own_addrs == NULL) goto done;
    if (sizes != Py_None) {
        own_sizes = freeze_list(sizes, "sizes", &sizes_n);
        if (own_sizes == NULL) goto done;
    }
    if (!check_lengths(it->keys.n, PyList_Size(own_addrs), own_sizes != NULL ? PyList_Size(own_sizes) : it->keys.n,
                       "keys"))
        goto done;
    is_ok = items_alloc(it, (size_t)pieces_n, own_sizes == NULL) && take_items(it, own_addrs, own_sizes, is_written);

done:
    Py_XDECREF(own_addrs);
    Py_XDECREF(own_sizes);
    if (!is_ok) kvpy_items_fini(it);
    return is_ok;
}

bool
kvpy_items_lineages(kvpy_items_t *it, PyObject *list)
{
    PyObject *held;

    if (list == Py_None) return true;
    held = check_list(list, "lineages") ? PySequence_Tuple(list) : NULL;
    if (held == NULL) return false;
    it->lineages = PyMem_New(kvpool_lineage_t, (size_t)it->keys.n + 1);
    if (it->lineages == NULL) PyErr_NoMemory();
    if (it->lineages != NULL && PyTuple_Size(held) != it->keys.n)
        PyErr_Format(PyExc_ValueError, "%zd keys and %zd lineages", it->keys.n, PyTuple_Size(held));
    for (Py_ssize_t i = 0; !PyErr_Occurred() && i < it->keys.n; i++) {
        PyObject *one = PyTuple_GetItem(held, i);

        if (one != Py_None && kvpy_lineage(one, &it->lineages[i])) it->items[i].lineage = &it->lineages[i];
    }
    Py_DECREF(held);
    return !PyErr_Occurred();
}

static bool
take_group(PyObject *one, kvpool_group_t *group_out)
{
    PyObject *id = one;

    *group_out = (kvpool_group_t){.members = 0};
    if (PyTuple_Check(one) && !PyArg_ParseTuple(one, "OO&O&;a group is an id or (id, members, member)", &id, kvpy_u32,
                                                &group_out->members, kvpy_u32, &group_out->member))
        return false;
    return kvpy_key(id, &group_out->id);
}

bool
kvpy_items_groups(kvpy_items_t *it, PyObject *list)
{
    if (list == Py_None) return true;
    it->groups_held = check_list(list, "groups") ? PySequence_Tuple(list) : NULL;
    if (it->groups_held == NULL) return false;
    it->groups = PyMem_New(kvpool_group_t, (size_t)it->keys.n + 1);
    if (it->groups == NULL) PyErr_NoMemory();
    if (it->groups != NULL && PyTuple_Size(it->groups_held) != it->keys.n)
        PyErr_Format(PyExc_ValueError, "%zd keys and %zd groups", it->keys.n, PyTuple_Size(it->groups_held));
    for (Py_ssize_t i = 0; !PyErr_Occurred() && i < it->keys.n; i++) {
        PyObject *one = PyTuple_GetItem(it->groups_held, i);

        if (one != Py_None && take_group(one, &it->groups[i])) it->items[i].group = &it->groups[i];
    }
    return !PyErr_Occurred();
}

void
kvpy_items_fini(kvpy_items_t *it)
{
    for (Py_ssize_t i = 0; i < it->mems_n; i++)
        kvpy_mem_fini(&it->mems[i]);
    PyMem_Free(it->mems);
    PyMem_Free(it->pieces);
    PyMem_Free(it->lineages);
    PyMem_Free(it->groups);
    Py_CLEAR(it->groups_held);
    PyMem_Free(it->results);
    PyMem_Free(it->items);
    kvpy_keys_fini(&it->keys);
    memset(it, 0, sizeof *it);
}
