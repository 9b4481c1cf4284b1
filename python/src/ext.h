/* SPDX-License-Identifier: Apache-2.0
 * ext.h - what the files of the extension kvpool._kvpool share. All of it is called with the interpreter's lock held.
 */
#ifndef KVPY_EXT_H
#define KVPY_EXT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "client/kvpool.h"

#include <stdbool.h>

/* One handle on a pool. The memory is the object's: calls hold a reference, so kvpool_free runs
 * without calls. */
typedef struct {
    PyObject_HEAD kvpool_t *pool; /* NULL = never opened */
    bool is_dropin; /* results are the codes of the drop-in API */
    uint32_t deadline_ms; /* of a call that gives none; 0 = the library's default */
    size_t guess; /* length of the last get */
    bool is_closing;
    Py_ssize_t exports_n; /* exported buffers of views */
    PyObject *
        on_invalid; /* called with the name and text of an error that a connector gets as INVALID's code; NULL = none */
} kvpy_pool_t;

extern PyTypeObject kvpy_pool_type;
extern PyTypeObject kvpy_view_type; /* the type of kvpy_view's results */
extern PyTypeObject kvpy_peer_type; /* peer.c */
extern PyTypeObject kvpy_span_type; /* span.c */

/* kvpy_code is the number that the handle's callers get for an error of the library. */
long kvpy_code(const kvpy_pool_t *self, int err);

/* kvpy_lookup_err is the error of a call that looks up or removes: for the drop-in API an
 * impossible key is an absent key. */
int kvpy_lookup_err(const kvpy_pool_t *self, int err);

/* kvpy_check sets an exception and returns false for a handle that was never opened. */
bool kvpy_check(const kvpy_pool_t *self);

/* kvpy_view returns a View, or an error as an int; NULL with an exception. */
PyObject *kvpy_view(kvpy_pool_t *self, const kvpool_key_t *key, const kvpool_opts_t *opts);

/* The remaining time of one call that asks the library more than once (budget.c). */
typedef struct {
    uint64_t end_ms; /* of CLOCK_MONOTONIC */
    bool is_ours; /* the caller gave no deadline */
} kvpy_budget_t;

kvpy_budget_t kvpy_budget_begin(const kvpy_pool_t *self, const kvpool_opts_t *opts);
/* Gives opts that part of what is left: 1 ms at least, as 0 would be the handle's own. */
void kvpy_budget_spend(const kvpy_budget_t *budget, uint32_t parts, kvpool_opts_t *opts);

/* Puts without the interpreter's lock (prefer.c). opts->segment is where they would rather lie:
 * what cannot is put anywhere, in the same time. Else as kvpool_put, with KVPOOL_UPSERT too, and
 * kvpool_batch_put. */
int kvpy_put_one(const kvpy_pool_t *self, const kvpool_key_t *key, const void *value, size_t len,
                 const kvpool_opts_t *opts);
int kvpy_put_items(const kvpy_pool_t *self, kvpool_item_t *items, size_t n, const kvpool_opts_t *opts, int *results);

/* The batch calls, METH_FASTCALL methods of the type (pool_batch.c). */
PyObject *kvpy_batch_put(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n);
PyObject *kvpy_batch_get(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n);
PyObject *kvpy_batch_is_exist(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n);
PyObject *kvpy_batch_remove(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n);
PyObject *kvpy_batch_locate(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n);
PyObject *kvpy_longest_prefix(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n);
PyObject *kvpy_lookup(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n);
PyObject *kvpy_lookup_release(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n);

/* pool_list.c, METH_VARARGS. */
PyObject *kvpy_list(kvpy_pool_t *self, PyObject *args);

/* Copies within this process (pool_copy.c): METH_FASTCALL and METH_VARARGS. */
PyObject *kvpy_copy_ranges(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n);
PyObject *kvpy_put_parts(kvpy_pool_t *self, PyObject *args);

#endif
