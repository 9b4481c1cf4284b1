/* SPDX-License-Identifier: Apache-2.0
 * convert.h - Python objects into what kvpool.h takes. Each returns false, or NULL, with an
 * exception set: TypeError for what is no key, address or length, OverflowError for numbers out of
 * range, ValueError for lists of unequal length. */
#ifndef KVPY_CONVERT_H
#define KVPY_CONVERT_H

#include "python/src/ext.h"

/* kvpy_key borrows a str's UTF-8 or a bytes' content; it lives as long as obj. Its length is not checked. */
bool kvpy_key(PyObject *obj, kvpool_key_t *key_out);

/* kvpy_uint takes an int, or what has __index__, from 0 to max. No float, no bool. */
bool kvpy_uint(PyObject *obj, uint64_t max, const char *what, uint64_t *value_out);

/* The same as converters for the "O&" of PyArg_ParseTuple, into a uint32_t and a uint64_t: its own formats for unsigned
 * ints ("I", "K") take what does not fit and cut it. */
int kvpy_u32(PyObject *obj, void *value_out);
int kvpy_u64(PyObject *obj, void *value_out);

/* kvpy_lineage takes (sequence, parent, depth). */
bool kvpy_lineage(PyObject *obj, kvpool_lineage_t *lineage_out);

/* Keys of a call. held keeps them alive while the lock is released, whatever happens to the caller's list. */
typedef struct {
    PyObject *held; /* tuple */
    kvpool_key_t *keys;
    Py_ssize_t n;
} kvpy_keys_t;

bool kvpy_keys_init(kvpy_keys_t *k, PyObject *list);
void kvpy_keys_fini(kvpy_keys_t *k);

/* Memory of a Python object: by the buffer protocol, else by DLPack. */
typedef struct {
    Py_buffer view; /* .obj NULL = not in use */
    PyObject *capsule; /* DLPack's; NULL = not in use */
    void *addr;
    size_t len;
    bool is_device; /* no processor may touch it */
} kvpy_mem_t;

/* kvpy_mem_init pins obj's memory, which has to be contiguous, and writable if is_written: else
 * BufferError. TypeError for an object without memory, or with Python objects or pointers in it. */
bool kvpy_mem_init(kvpy_mem_t *mem, PyObject *obj, bool is_written);
void kvpy_mem_fini(kvpy_mem_t *mem);

/* Items of a batch: n keys with their pieces. */
typedef struct {
    kvpy_keys_t keys;
    kvpool_item_t *items;
    kvpool_iov_t *pieces;
    kvpy_mem_t *mems; /* where memory came as objects */
    Py_ssize_t mems_n;
    kvpool_lineage_t *lineages; /* NULL = none */
    kvpy_keys_t group_ids;
    kvpool_group_t *groups; /* NULL = none */
    int *results;
} kvpy_items_t;

/* kvpy_items_init takes keys with addresses and sizes: lists of ints, one piece each, or of lists
 * of ints; or, with sizes None, keys with objects that have memory, or lists of these. */
bool kvpy_items_init(kvpy_items_t *it, PyObject *keys, PyObject *addrs, PyObject *sizes, bool is_written);
/* kvpy_items_lineages gives the items of a put their lineages: None, or a list with that of each, or None. */
bool kvpy_items_lineages(kvpy_items_t *it, PyObject *list);
/* kvpy_items_groups gives the items of a put their groups, which are evicted together: None, or a
 * list with the id of each item's group. */
bool kvpy_items_groups(kvpy_items_t *it, PyObject *ids);
void kvpy_items_fini(kvpy_items_t *it);

#endif
