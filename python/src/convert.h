/* SPDX-License-Identifier: Apache-2.0
 * convert.h - converts Python objects to the arguments of kvpool.h. On failure a function returns false or NULL with an
 * exception set: TypeError for an object that is no key, address or length, OverflowError for a number out of range,
 * ValueError for lists of unequal length. */
#ifndef KVPY_CONVERT_H
#define KVPY_CONVERT_H

#include "python/src/ext.h"

/* kvpy_type_error sets TypeError: `what` is `wanted`, not an object of obj's type. It returns false. */
bool kvpy_type_error(const char *what, const char *wanted, PyObject *obj);

/* kvpy_type_name returns the name of obj's type, a new reference. */
PyObject *kvpy_type_name(PyObject *obj);

/* kvpy_tuple copies an iterable object as a tuple. TypeError with the text `why` for another object. */
PyObject *kvpy_tuple(PyObject *obj, const char *why);

/* kvpy_list_set sets element i of a new list to `one` and takes the reference to it. With `one` NULL it drops the list
 * and sets *list to NULL. */
static inline void
kvpy_list_set(PyObject **list, Py_ssize_t i, PyObject *one)
{
    if (one == NULL)
        Py_CLEAR(*list);
    else
        PyList_SetItem(*list, i, one);
}

/* kvpy_key borrows the UTF-8 of a str or the content of a bytes object, valid as long as obj. It does not check the
 * length. */
bool kvpy_key(PyObject *obj, kvpool_key_t *key_out);

/* kvpy_uint converts an int, or an object with __index__, from 0 to max. It refuses float and bool. */
bool kvpy_uint(PyObject *obj, uint64_t max, const char *what, uint64_t *value_out);

/* kvpy_uint as converters for "O&" of PyArg_ParseTuple, into a uint32_t and a uint64_t. PyArg_ParseTuple's own formats
 * for unsigned ints ("I", "K") accept a number that does not fit and cut it. */
int kvpy_u32(PyObject *obj, void *value_out);
/* kvpy_segments reads a tuple of at most KVPOOL_COPIES_MAX segment ids. False: it has set an exception. */
bool kvpy_segments(PyObject *tuple, uint32_t ids_out[KVPOOL_COPIES_MAX], uint32_t *n_out);
int kvpy_u64(PyObject *obj, void *value_out);

/* kvpy_hashes copies a sequence of bytes objects of one length, 1 to 64 bytes, one after the other, and kvpy_hex
 * writes bytes as hexadecimal digits and returns their number. The caller frees the hashes by free. */
uint8_t *kvpy_hashes(PyObject *list, size_t *n_out, size_t *len_out);
size_t kvpy_hex(const uint8_t *bytes, size_t n, char *text);

/* kvpy_lineage converts a tuple (sequence, parent, depth). */
bool kvpy_lineage(PyObject *obj, kvpool_lineage_t *lineage_out);

/* The keys of a call. `held` keeps the key objects alive while the interpreter's lock is released, even if the
 * caller's list changes. */
typedef struct {
    PyObject *held; /* a tuple of the key objects */
    kvpool_key_t *keys;
    Py_ssize_t n;
} kvpy_keys_t;

bool kvpy_keys_init(kvpy_keys_t *k, PyObject *list);
void kvpy_keys_fini(kvpy_keys_t *k);

/* The memory of a Python object, by the buffer protocol or else by DLPack. */
typedef struct {
    Py_buffer view; /* the object's buffer; view.obj NULL = not used */
    PyObject *capsule; /* the object's DLPack capsule; NULL = not used */
    void *addr;
    size_t len;
    bool is_device; /* device memory, which no processor may touch */
} kvpy_mem_t;

/* kvpy_mem_init pins obj's memory. BufferError if the memory is not contiguous, or not writable although is_written.
 * TypeError for an object without memory, or with Python objects or pointers in its memory. */
bool kvpy_mem_init(kvpy_mem_t *mem, PyObject *obj, bool is_written);
void kvpy_mem_fini(kvpy_mem_t *mem);

/* The items of a batch: n keys with their pieces of memory. */
typedef struct {
    kvpy_keys_t keys;
    kvpool_item_t *items;
    kvpool_iov_t *pieces;
    /* exported buffers of the pieces that are Python objects: they keep the memory valid during the call */
    kvpy_mem_t *mems;
    Py_ssize_t mems_n;
    kvpool_lineage_t *lineages; /* NULL = the items have no lineages */
    PyObject *groups_held; /* a tuple of the group objects, whose ids are borrowed; NULL = no groups */
    kvpool_group_t *groups; /* NULL = the items have no groups */
    int *results;
} kvpy_items_t;

/* kvpy_items_init converts keys with addresses and sizes: lists of ints (one piece for each key), or lists of lists
 * of ints. With sizes None it converts keys with objects that have memory, or with lists of such objects. */
bool kvpy_items_init(kvpy_items_t *it, PyObject *keys, PyObject *addrs, PyObject *sizes, bool is_written);
/* kvpy_items_lineages sets the lineages of the items of a put. list is None, or a list with a lineage or None for
 * each item. */
bool kvpy_items_lineages(kvpy_items_t *it, PyObject *list);
/* kvpy_items_groups sets the groups of the items of a put. list is None, or a list with None, an id, or a tuple (id,
 * members, member) for each item. */
bool kvpy_items_groups(kvpy_items_t *it, PyObject *list);
void kvpy_items_fini(kvpy_items_t *it);

#endif
