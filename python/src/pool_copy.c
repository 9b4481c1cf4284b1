/* SPDX-License-Identifier: Apache-2.0
 * Copies within this process: ranges between objects in registered memory and the caller's registered memory, and
 * values that consist of parts. The interpreter's lock is released while bytes are copied. */
#include "python/src/convert.h"

#include <stdlib.h>
#include <string.h>

/* ---- ranges */

/* An object in registered memory, and the ranges to copy to it or from it. */
typedef struct {
    Py_ssize_t n; /* number of ranges */
    size_t first; /* index of the item's first range in ranges_t.pieces, where it has n ranges if err is OK */
    int err; /* error of all ranges of the item; with is_code a code to be returned unchanged */
    bool is_code;
} item_t;

typedef struct {
    PyObject *places, *ptrs, *sizes, *offsets; /* tuples of n elements each, owned */
    Py_ssize_t n;
    item_t *items;
    kvpool_copy_t *pieces;
    int *results;
    size_t pieces_n;
    size_t pieces_cap;
    bool is_to_place;
} ranges_t;

static void
ranges_fini(ranges_t *r)
{
    Py_XDECREF(r->places);
    Py_XDECREF(r->ptrs);
    Py_XDECREF(r->sizes);
    Py_XDECREF(r->offsets);
    PyMem_Free(r->items);
    PyMem_Free(r->pieces);
    PyMem_Free(r->results);
}

static PyObject *
take_tuple(PyObject *obj, const char *what)
{
    if (PyList_Check(obj) || PyTuple_Check(obj)) return PySequence_Tuple(obj);
    kvpy_type_error(what, "a list", obj);
    return NULL;
}

static bool
make_room(ranges_t *r, size_t more)
{
    size_t cap = r->pieces_cap == 0 ? 64 : r->pieces_cap;
    kvpool_copy_t *pieces;

    if (r->pieces_n + more <= r->pieces_cap) return true;
    while (cap < r->pieces_n + more)
        cap *= 2;
    pieces = PyMem_Resize(r->pieces, kvpool_copy_t, cap);
    if (pieces == NULL) {
        PyErr_NoMemory();
        return false;
    }
    r->pieces = pieces;
    r->pieces_cap = cap;
    return true;
}

/* Reads one range of an object. A range outside of the object gets no address, so its copy fails. An empty range is not
 * copied: copy_all checks only that it has both addresses. */
static bool
take_range(ranges_t *r, uint64_t base, uint64_t len, PyObject *const *three)
{
    uint64_t addr, size, off;
    kvpool_copy_t *piece = &r->pieces[r->pieces_n];
    void *inside, *outside;

    if (!kvpy_uint(three[0], UINTPTR_MAX, "an address", &addr) || !kvpy_uint(three[1], SIZE_MAX, "a size", &size) ||
        !kvpy_uint(three[2], SIZE_MAX, "an offset", &off))
        return false;
    inside = off <= len && size <= len - off ? (void *)(uintptr_t)(base + off) : NULL;
    outside = (void *)(uintptr_t)addr;
    *piece = (kvpool_copy_t){
        .dst = r->is_to_place ? inside : outside, .src = r->is_to_place ? outside : inside, .len = (size_t)size};
    r->pieces_n++;
    return true;
}

/* Reads an item's object: (address, length), or an error code. */
static bool
take_place(PyObject *place, item_t *item, uint64_t *base_out, uint64_t *len_out)
{
    if (PyLong_Check(place)) {
        item->err = (int)PyLong_AsLong(place);
        item->is_code = true;
        return !PyErr_Occurred();
    }
    if (!PyTuple_Check(place) || PyTuple_Size(place) != 2) {
        PyErr_SetString(PyExc_TypeError, "a place is (address, length), or a code");
        return false;
    }
    return kvpy_uint(PyTuple_GetItem(place, 0), UINTPTR_MAX, "an address", base_out) &&
           kvpy_uint(PyTuple_GetItem(place, 1), SIZE_MAX, "a length", len_out);
}

static bool
take_item(ranges_t *r, Py_ssize_t i)
{
    item_t *item = &r->items[i];
    PyObject *ptrs = take_tuple(PyTuple_GetItem(r->ptrs, i), "the buffers of a key");
    PyObject *sizes = ptrs != NULL ? take_tuple(PyTuple_GetItem(r->sizes, i), "the sizes of a key") : NULL;
    PyObject *offsets = sizes != NULL ? take_tuple(PyTuple_GetItem(r->offsets, i), "the offsets of a key") : NULL;
    uint64_t base = 0, len = 0;
    bool is_ok = offsets != NULL;

    *item = (item_t){.first = r->pieces_n};
    is_ok = is_ok && take_place(PyTuple_GetItem(r->places, i), item, &base, &len);
    if (is_ok) {
        item->n = PyTuple_Size(ptrs);
        if (item->n != PyTuple_Size(sizes) || item->n != PyTuple_Size(offsets)) {
            item->err = KVPOOL_INVALID;
            item->is_code = false;
        }
    }
    is_ok = is_ok && (item->err != KVPOOL_OK || make_room(r, (size_t)item->n));
    for (Py_ssize_t k = 0; is_ok && item->err == KVPOOL_OK && k < item->n; k++) {
        PyObject *three[] = {PyTuple_GetItem(ptrs, k), PyTuple_GetItem(sizes, k), PyTuple_GetItem(offsets, k)};

        is_ok = take_range(r, base, len, three);
    }
    Py_XDECREF(ptrs);
    Py_XDECREF(sizes);
    Py_XDECREF(offsets);
    return is_ok;
}

static bool
take_ranges(ranges_t *r, PyObject *const *args)
{
    r->places = take_tuple(args[0], "places");
    r->ptrs = r->places != NULL ? take_tuple(args[1], "buffers") : NULL;
    r->sizes = r->ptrs != NULL ? take_tuple(args[2], "sizes") : NULL;
    r->offsets = r->sizes != NULL ? take_tuple(args[3], "offsets") : NULL;
    if (r->offsets == NULL) return false;
    r->n = PyTuple_Size(r->places);
    if (PyTuple_Size(r->ptrs) != r->n || PyTuple_Size(r->sizes) != r->n || PyTuple_Size(r->offsets) != r->n) {
        PyErr_SetString(PyExc_ValueError, "places, buffers, sizes and offsets are as many as the keys");
        return false;
    }
    r->items = PyMem_New(item_t, (size_t)r->n + 1);
    for (Py_ssize_t i = 0; r->items != NULL && i < r->n; i++)
        if (!take_item(r, i)) return false;
    r->results = PyMem_New(int, r->pieces_n + 1);
    if (r->items != NULL && r->results != NULL) return true;
    PyErr_NoMemory();
    return false;
}

/* Returns the result of a range: the number of its bytes, or an error code. */
static PyObject *
range_result(const kvpy_pool_t *self, const ranges_t *r, const item_t *item, Py_ssize_t k)
{
    size_t at = item->first + (size_t)k;

    if (item->err != KVPOOL_OK) return PyLong_FromLong(item->is_code ? item->err : kvpy_code(self, item->err));
    return r->results[at] == KVPOOL_OK ? PyLong_FromSize_t(r->pieces[at].len)
                                       : PyLong_FromLong(kvpy_code(self, r->results[at]));
}

/* Returns the number of bytes of all ranges of an item, or the first error code. */
static PyObject *
item_sum(const kvpy_pool_t *self, const ranges_t *r, const item_t *item)
{
    uint64_t sum = 0;

    if (item->err != KVPOOL_OK) return range_result(self, r, item, 0);
    for (Py_ssize_t k = 0; k < item->n; k++) {
        if (r->results[item->first + (size_t)k] != KVPOOL_OK) return range_result(self, r, item, k);
        sum += r->pieces[item->first + (size_t)k].len;
    }
    return PyLong_FromUnsignedLongLong(sum);
}

static PyObject *
item_list(const kvpy_pool_t *self, const ranges_t *r, const item_t *item)
{
    PyObject *list = PyList_New(item->n);

    for (Py_ssize_t k = 0; list != NULL && k < item->n; k++)
        kvpy_list_set(&list, k, range_result(self, r, item, k));
    return list;
}

/* Copies all ranges. Calls the library for the ranges between two empty ranges; the library checks addresses and
 * lengths. */
static void
copy_all(kvpy_pool_t *self, ranges_t *r)
{
    int err = KVPOOL_OK;
    size_t at = 0;

    while (at < r->pieces_n && err == KVPOOL_OK) { /* each turn copies the ranges up to the next empty range */
        size_t end = at;

        while (end < r->pieces_n && r->pieces[end].len > 0)
            end++;
        if (end > at) err = kvpool_copy(self->pool, r->pieces + at, end - at, r->results + at);
        if (err == KVPOOL_OK && end < r->pieces_n)
            r->results[end] = r->pieces[end].dst != NULL && r->pieces[end].src != NULL ? KVPOOL_OK : KVPOOL_INVALID;
        at = end + 1;
    }
    for (size_t i = 0; err != KVPOOL_OK && i < r->pieces_n; i++)
        r->results[i] = err;
}

/* copy_ranges(places, buffers, sizes, offsets, is_to_place, is_summed) -> list with one result for each item: the
 * number of copied bytes or an error code; with is_summed false a list of such results for the item's ranges. A place
 * is (address, length) of the object, or an error code. Offsets are within the object. */
PyObject *
kvpy_copy_ranges(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n)
{
    ranges_t r = {.places = NULL};
    PyObject *list = NULL;
    bool is_summed;

    if (!kvpy_check(self)) return NULL;
    if (n != 6) {
        PyErr_Format(PyExc_TypeError, "copy_ranges takes 6 arguments, not %zd", n);
        return NULL;
    }
    r.is_to_place = PyObject_IsTrue(args[4]) == 1;
    is_summed = PyObject_IsTrue(args[5]) == 1;
    if (take_ranges(&r, args)) {
        Py_BEGIN_ALLOW_THREADS
            copy_all(self, &r);
        Py_END_ALLOW_THREADS
        list = PyList_New(r.n);
    }
    for (Py_ssize_t i = 0; list != NULL && i < r.n; i++) {
        PyObject *one = is_summed ? item_sum(self, &r, &r.items[i]) : item_list(self, &r, &r.items[i]);

        kvpy_list_set(&list, i, one);
    }
    ranges_fini(&r);
    return list;
}

/* ---- values in parts */
typedef struct {
    kvpy_mem_t *mems;
    Py_ssize_t n;
    size_t len;
} parts_t;

static void
parts_fini(parts_t *p)
{
    for (Py_ssize_t i = 0; i < p->n; i++)
        kvpy_mem_fini(&p->mems[i]);
    PyMem_Free(p->mems);
}

static bool
parts_init(parts_t *p, PyObject *tuple)
{
    Py_ssize_t n = PyTuple_Size(tuple);

    *p = (parts_t){.mems = PyMem_New(kvpy_mem_t, (size_t)n + 1)};
    if (p->mems == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (; p->n < n; p->n++) {
        PyObject *part = PyTuple_GetItem(tuple, p->n);

        if (!kvpy_mem_init(&p->mems[p->n], part, false)) break;
        if (p->mems[p->n].is_device) {
            PyErr_SetString(PyExc_TypeError, "a part is memory of the host, and not a device's");
            kvpy_mem_fini(&p->mems[p->n]);
            break;
        }
        if (__builtin_add_overflow(p->len, p->mems[p->n].len, &p->len)) p->len = SIZE_MAX; /* longer than any memory */
    }
    if (p->n == n) return true;
    parts_fini(p);
    return false;
}

static int
put_joined(kvpy_pool_t *self, const kvpool_key_t *key, const parts_t *p, const kvpool_opts_t *opts)
{
    uint8_t *joined = malloc(p->len), *at = joined;
    int err;

    if (joined == NULL) return KVPOOL_NOMEM;
    for (Py_ssize_t i = 0; i < p->n; i++) {
        if (p->mems[i].len > 0) memcpy(at, p->mems[i].addr, p->mems[i].len);
        at += p->mems[i].len;
    }
    err = kvpy_put_one(self, key, joined, p->len, opts);
    free(joined);
    return err;
}

/* put_parts(key, tuple of objects with host memory, deadline_ms, flags, replicas, (preferred segment, ...)) -> 0, or
 * an error number. If all parts are empty nothing is put, and the result is 0, as connectors expect. */
PyObject *
kvpy_put_parts(kvpy_pool_t *self, PyObject *args)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts};
    uint32_t segments[KVPOOL_COPIES_MAX];
    PyObject *key_obj, *tuple, *where;
    kvpool_key_t key;
    parts_t parts;
    int err = KVPOOL_OK;

    if (!kvpy_check(self) ||
        !PyArg_ParseTuple(args, "OO!O&O&O&O", &key_obj, &PyTuple_Type, &tuple, kvpy_u32, &opts.deadline_ms, kvpy_u32,
                          &opts.flags, kvpy_u32, &opts.replicas, &where) ||
        !kvpy_prefer(where, segments, &opts))
        return NULL;
    if (!kvpy_key(key_obj, &key) || !parts_init(&parts, tuple)) return NULL;
    if (parts.len > 0) {
        Py_BEGIN_ALLOW_THREADS
            err = put_joined(self, &key, &parts, &opts);
        Py_END_ALLOW_THREADS
    }
    parts_fini(&parts);
    return PyLong_FromLong(err < 0 ? kvpy_code(self, err) : err);
}
