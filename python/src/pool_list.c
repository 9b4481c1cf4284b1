/* SPDX-License-Identifier: Apache-2.0
 * list: lists the pool's keys, one page at a time. This is the only call in which the library calls back. */
#include "python/src/convert.h"

#include <stdlib.h>
#include <string.h>

/* The entries that the library reports without the interpreter's lock, one after the other: the lengths of key and
 * object, then the key. No Python object is created in the callback, because this may collect garbage, and the
 * collection may close this very pool: the close would wait for the call in which it runs. */
typedef struct {
    char *bytes;
    size_t len, cap, n;
    bool is_short; /* out of memory, so the listing is incomplete */
} listing_t;

static int
list_one(void *arg, const void *key, size_t key_len, uint64_t len)
{
    const uint64_t lens[2] = {key_len, len};
    listing_t *l = arg;

    if (sizeof lens + key_len > l->cap - l->len) {
        size_t cap = 2 * l->cap + sizeof lens + key_len;
        char *bytes = realloc(l->bytes, cap);

        l->is_short = bytes == NULL;
        if (l->is_short) return -1;
        l->bytes = bytes;
        l->cap = cap;
    }
    memcpy(l->bytes + l->len, lens, sizeof lens);
    memcpy(l->bytes + l->len + sizeof lens, key, key_len);
    l->len += sizeof lens + key_len;
    l->n++;
    return 0;
}

static PyObject *
list_of_entries(const listing_t *l)
{
    PyObject *list = PyList_New((Py_ssize_t)l->n);
    const char *at = l->bytes;

    for (size_t i = 0; list != NULL && i < l->n; i++) {
        PyObject *pair;
        uint64_t lens[2];

        memcpy(lens, at, sizeof lens);
        at += sizeof lens;
        pair = Py_BuildValue("(y#K)", at, (Py_ssize_t)lens[0], (unsigned long long)lens[1]);
        at += lens[0];
        kvpy_list_set(&list, (Py_ssize_t)i, pair);
    }
    return list;
}

/* list(prefix: bytes, limit, cursor, deadline_ms) -> an error number, or (cursor, [(key: bytes, length)]) */
PyObject *
kvpy_list(kvpy_pool_t *self, PyObject *args)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts};
    listing_t l = {.bytes = NULL};
    PyObject *list = NULL;
    Py_ssize_t prefix_len;
    const char *prefix;
    uint64_t cursor;
    uint32_t limit;
    int err;

    if (!kvpy_check(self) || !PyArg_ParseTuple(args, "y#O&O&O&", &prefix, &prefix_len, kvpy_u32, &limit, kvpy_u64,
                                               &cursor, kvpy_u32, &opts.deadline_ms))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_list(self->pool, prefix, (size_t)prefix_len, limit, &cursor, list_one, &l, &opts);
    Py_END_ALLOW_THREADS
    if (err == KVPOOL_OK && !l.is_short) list = list_of_entries(&l);
    free(l.bytes);
    if (err != KVPOOL_OK) return PyLong_FromLong(kvpy_code(self, err));
    if (l.is_short) return PyErr_NoMemory();
    return list != NULL ? Py_BuildValue("(KN)", (unsigned long long)cursor, list) : NULL;
}
