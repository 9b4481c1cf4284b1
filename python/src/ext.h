/* SPDX-License-Identifier: Apache-2.0
 * ext.h - shared by the files of the extension kvpool._kvpool. Functions are called with the interpreter's lock held,
 * unless their comment says otherwise. */
#ifndef KVPY_EXT_H
#define KVPY_EXT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "client/kvpool.h"

#include <stdbool.h>
#include <time.h>

/* Python 3.9 lacks two type flags: there a program can change this module's types, and make a View without bytes. */
#ifndef Py_TPFLAGS_IMMUTABLETYPE
#define Py_TPFLAGS_IMMUTABLETYPE 0
#define Py_TPFLAGS_DISALLOW_INSTANTIATION 0
#endif
#define KVPY_TYPE_FLAGS (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE)

/* A Python object with one handle on a pool. Each call has a reference to the object, so kvpool_free runs only when
 * no call is running. */
typedef struct {
    PyObject_HEAD kvpool_t *pool; /* the library's handle; NULL = never opened */
    bool is_dropin; /* errors are returned as the codes of the drop-in API (mooncake) */
    uint32_t deadline_ms; /* deadline of a call that gives none; 0 = the library's default */
    /* guess of the next value's length in get: the longest value so far, or the last one; 0 = no value yet */
    size_t guess;
    bool is_closing;
    Py_ssize_t exports_n; /* number of buffers that views export */
    /* called with name and text of an error that the drop-in API reports as INVALID; NULL = none */
    PyObject *on_invalid;
} kvpy_pool_t;

/* The types, made once for each process from the specifications below (module.c). */
extern PyTypeObject *kvpy_pool_type;
extern PyTypeObject *kvpy_view_type; /* the type of the results of kvpy_view */

extern PyType_Spec kvpy_pool_spec; /* defined in pool.c */
extern PyType_Spec kvpy_view_spec; /* defined in view.c */
extern PyType_Spec kvpy_peer_spec; /* defined in peer.c */
extern PyType_Spec kvpy_span_spec; /* defined in span.c */
extern PyType_Spec kvpy_asker_spec; /* defined in asker.c */
extern PyType_Spec kvpy_job_spec; /* defined in job.c */

static inline double
kvpy_now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* kvpy_free_object is the end of a tp_dealloc: it frees the object and drops the object's reference to its type. */
void kvpy_free_object(void *self);

/* kvpy_code returns the number that the handle's callers get for an error of the library. */
long kvpy_code(const kvpy_pool_t *self, int err);

/* kvpy_lookup_err returns the error of a call that looks up or removes. In the drop-in API BAD_KEY becomes NOT_FOUND,
 * because an impossible key is an absent key there. */
int kvpy_lookup_err(const kvpy_pool_t *self, int err);

/* kvpy_check returns true if the handle was opened, else false with an exception set. */
bool kvpy_check(const kvpy_pool_t *self);

/* kvpy_view returns a View of the key's object, or an error number as an int; NULL with an exception set. */
PyObject *kvpy_view(kvpy_pool_t *self, const kvpool_key_t *key, const kvpool_opts_t *opts);

/* The remaining time of one Python call that calls the library more than once (budget.c). */
typedef struct {
    uint64_t end_ms; /* end of the time, by CLOCK_MONOTONIC */
    bool is_ours; /* the caller gave no deadline, so the handle's default is used */
} kvpy_budget_t;

kvpy_budget_t kvpy_budget_begin(const kvpy_pool_t *self, const kvpool_opts_t *opts);
/* kvpy_budget_spend sets the deadline of opts to 1/parts of the remaining time, at least 1 ms, because 0 would mean
 * the handle's default. */
void kvpy_budget_spend(const kvpy_budget_t *budget, uint32_t parts, kvpool_opts_t *opts);

/* kvpy_prefer sets the options of a put from its preferred segments, a tuple of ids, which are stored in `segments`.
 * False: it has set an exception. */
bool kvpy_prefer(PyObject *tuple, uint32_t segments[KVPOOL_COPIES_MAX], kvpool_opts_t *opts);
/* Put without the interpreter's lock (prefer.c). opts->segment is the preferred segment: an object that cannot be put
 * there is put on any segment, in the same time. Else as kvpool_put (also with KVPOOL_UPSERT) and kvpool_batch_put. */
int kvpy_put_one(const kvpy_pool_t *self, const kvpool_key_t *key, const void *value, size_t len,
                 const kvpool_opts_t *opts);
int kvpy_put_items(const kvpy_pool_t *self, kvpool_item_t *items, size_t n, const kvpool_opts_t *opts, int *results);

/* The methods of the pool type for batches of keys, METH_FASTCALL (pool_batch.c). */
PyObject *kvpy_batch_put(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n);
PyObject *kvpy_batch_get(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n);
PyObject *kvpy_batch_is_exist(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n);
PyObject *kvpy_batch_remove(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n);
PyObject *kvpy_batch_locate(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n);
PyObject *kvpy_longest_prefix(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n);
PyObject *kvpy_lookup(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n);
PyObject *kvpy_lookup_release(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n);

/* Lists keys (pool_list.c), METH_VARARGS. */
PyObject *kvpy_list(kvpy_pool_t *self, PyObject *args);

/* Methods in pool_copy.c: kvpy_copy_ranges is METH_FASTCALL, kvpy_put_parts is METH_VARARGS. */
PyObject *kvpy_copy_ranges(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n);
PyObject *kvpy_put_parts(kvpy_pool_t *self, PyObject *args);

#endif
