/* SPDX-License-Identifier: Apache-2.0
 * Batches and look-ups: the arguments are converted once, and the interpreter's lock is released once for each call. */
#include "python/src/convert.h"

static bool
check_args(const char *name, Py_ssize_t n, Py_ssize_t wanted)
{
    if (n == wanted) return true;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, wanted, n);
    return false;
}

/* Reads [deadline_ms, flags] from args. */
static bool
take_opts(PyObject *const *args, kvpool_opts_t *opts_out)
{
    uint64_t deadline_ms, flags;

    if (!kvpy_uint(args[0], UINT32_MAX, "deadline_ms", &deadline_ms) ||
        !kvpy_uint(args[1], UINT32_MAX, "flags", &flags))
        return false;
    *opts_out = (kvpool_opts_t){
        .struct_size = sizeof *opts_out, .deadline_ms = (uint32_t)deadline_ms, .flags = (uint32_t)flags};
    return true;
}

static bool
take_put_opts(PyObject *const *args, uint32_t segments[KVPOOL_COPIES_MAX], kvpool_opts_t *opts_out)
{
    uint64_t replicas;

    if (!take_opts(args, opts_out) || !kvpy_uint(args[2], UINT32_MAX, "replicas", &replicas)) return false;
    opts_out->replicas = (uint32_t)replicas;
    return kvpy_prefer(args[3], segments, opts_out);
}

/* Reads the epoch, which may be missing, from args[at]. */
static bool
take_epoch(PyObject *const *args, Py_ssize_t n, Py_ssize_t at, kvpool_opts_t *opts)
{
    uint64_t epoch = 0;

    if (n > at && !kvpy_uint(args[at], UINT32_MAX, "epoch", &epoch)) return false;
    opts->epoch = (uint32_t)epoch;
    return true;
}

/* Sets the error of a failed batch as the result of each item, because no item was carried out. */
static void
spread_err(int err, int *results, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; err != KVPOOL_OK && i < n; i++)
        results[i] = err;
}

/* Replaces the errors of impossible keys by `absent`, the result for an absent key, in the drop-in API: see
 * kvpy_lookup_err. */
static void
lookup_results(const kvpy_pool_t *self, int *results, Py_ssize_t n, int absent)
{
    for (Py_ssize_t i = 0; self->is_dropin && i < n; i++)
        if (results[i] == KVPOOL_BAD_KEY) results[i] = absent;
}

/* Makes a list of results: for each item its length in `lens` or, with lens NULL, its result; or the error number. */
static PyObject *
list_of_results(const kvpy_pool_t *self, const int *results, const kvpool_item_t *lens, Py_ssize_t n)
{
    PyObject *list = PyList_New(n);

    for (Py_ssize_t i = 0; list != NULL && i < n; i++) {
        bool is_ok = results[i] >= 0;
        PyObject *value = is_ok && lens != NULL ? PyLong_FromSize_t(lens[i].len)
                                                : PyLong_FromLong(is_ok ? results[i] : kvpy_code(self, results[i]));

        kvpy_list_set(&list, i, value);
    }
    return list;
}

/* batch_put(keys, buffers, sizes, deadline_ms, flags, replicas, (preferred segment, ...), groups[, lineages[, epoch]])
 * -> list of 0 or an error number */
PyObject *
kvpy_batch_put(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n)
{
    uint32_t segments[KVPOOL_COPIES_MAX];
    kvpool_opts_t opts;
    kvpy_items_t it;
    PyObject *list;
    int err;

    if (!kvpy_check(self) || !check_args("batch_put", n, n == 9 || n == 10 ? n : 8) ||
        !take_put_opts(args + 3, segments, &opts) || !take_epoch(args, n, 9, &opts))
        return NULL;
    if (!kvpy_items_init(&it, args[0], args[1], args[2], false)) return NULL;
    if ((n >= 9 && !kvpy_items_lineages(&it, args[8])) || !kvpy_items_groups(&it, args[7])) {
        kvpy_items_fini(&it);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
        err = kvpy_put_items(self, it.items, (size_t)it.keys.n, &opts, it.results);
    Py_END_ALLOW_THREADS
    spread_err(err, it.results, it.keys.n);
    list = list_of_results(self, it.results, NULL, it.keys.n);
    kvpy_items_fini(&it);
    return list;
}

/* batch_get(keys, buffers, sizes, deadline_ms, flags[, epoch]) -> list of length or an error number */
PyObject *
kvpy_batch_get(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n)
{
    kvpool_opts_t opts;
    kvpy_items_t it;
    PyObject *list;
    int err;

    if (!kvpy_check(self) || !check_args("batch_get", n, n == 6 ? 6 : 5) || !take_opts(args + 3, &opts) ||
        !take_epoch(args, n, 5, &opts))
        return NULL;
    if (!kvpy_items_init(&it, args[0], args[1], args[2], true)) return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_batch_get(self->pool, it.items, (size_t)it.keys.n, &opts, it.results);
    Py_END_ALLOW_THREADS
    spread_err(err, it.results, it.keys.n);
    lookup_results(self, it.results, it.keys.n, KVPOOL_NOT_FOUND);
    list = list_of_results(self, it.results, it.items, it.keys.n);
    kvpy_items_fini(&it);
    return list;
}

/* A function of the library with one result for each key. ask_each takes the Python arguments (keys, deadline_ms,
 * flags) and calls the function; `absent` is the result of the drop-in API for an impossible key. */
typedef int (*per_key_fn)(kvpool_t *pool, const kvpool_key_t *keys, size_t n, const kvpool_opts_t *opts, int *results);

static PyObject *
ask_each(const kvpy_pool_t *self, PyObject *const *args, per_key_fn ask, int absent, uint64_t segment)
{
    PyObject *list = NULL;
    kvpool_opts_t opts;
    kvpy_keys_t keys;
    int *results, err;

    if (!take_opts(args + 1, &opts) || !kvpy_keys_init(&keys, args[0])) return NULL;
    opts.segment = (uint32_t)segment;
    results = PyMem_New(int, (size_t)keys.n + 1);
    if (results == NULL) {
        PyErr_NoMemory();
    } else {
        Py_BEGIN_ALLOW_THREADS
            err = ask(self->pool, keys.keys, (size_t)keys.n, &opts, results);
        Py_END_ALLOW_THREADS
        spread_err(err, results, keys.n);
        lookup_results(self, results, keys.n, absent);
        list = list_of_results(self, results, NULL, keys.n);
    }
    PyMem_Free(results);
    kvpy_keys_fini(&keys);
    return list;
}

/* batch_is_exist(keys, deadline_ms, flags) -> list of 1, 0, or an error number */
PyObject *
kvpy_batch_is_exist(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n)
{
    if (!kvpy_check(self) || !check_args("batch_is_exist", n, 3)) return NULL;
    return ask_each(self, args, kvpool_batch_is_exist, 0, 0);
}

/* batch_remove(keys, deadline_ms, flags, segment whose copy is removed, or 0 = all copies) -> list of 0 or an error
 * number */
PyObject *
kvpy_batch_remove(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n)
{
    uint64_t segment;

    if (!kvpy_check(self) || !check_args("batch_remove", n, 4)) return NULL;
    if (!kvpy_uint(args[3], UINT32_MAX, "segment", &segment)) return NULL;
    return ask_each(self, args, kvpool_batch_remove, KVPOOL_NOT_FOUND, segment);
}

/* ---- places of objects */
static PyObject *
make_place(const kvpy_pool_t *self, const kvpool_place_t *p, int err, bool wants_lineage)
{
    PyObject *segments, *lineage;

    if (err != KVPOOL_OK) return PyLong_FromLong(kvpy_code(self, err));
    segments = PyTuple_New((Py_ssize_t)p->copies);
    for (uint32_t i = 0; segments != NULL && i < p->copies; i++) {
        PyObject *id = PyLong_FromUnsignedLong(p->segments[i]);

        if (id == NULL)
            Py_CLEAR(segments);
        else
            PyTuple_SetItem(segments, i, id);
    }
    if (segments == NULL) return NULL;
    if (!wants_lineage) return Py_BuildValue("(KNI)", (unsigned long long)p->len, segments, p->tier);
    lineage = p->has_lineage != 0 ? Py_BuildValue("(KKI)", (unsigned long long)p->lineage.sequence,
                                                  (unsigned long long)p->lineage.parent, p->lineage.depth)
                                  : Py_BuildValue("");
    return Py_BuildValue("(KNIN)", (unsigned long long)p->len, segments, p->tier, lineage);
}

static PyObject *
list_of_places(const kvpy_pool_t *self, const kvpool_place_t *places, const int *results, Py_ssize_t n,
               bool wants_lineages)
{
    PyObject *list = PyList_New(n);

    for (Py_ssize_t i = 0; list != NULL && i < n; i++)
        kvpy_list_set(&list, i, make_place(self, &places[i], results[i], wants_lineages));
    return list;
}

/* batch_locate(keys, deadline_ms, flags) -> list of (length, (segment_id, ...), segment_id on SSD or 0), or an error
 * number. With LINEAGES the tuple has a fourth element: a lineage or None. */
PyObject *
kvpy_batch_locate(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n)
{
    kvpool_place_t *places;
    PyObject *list = NULL;
    kvpool_opts_t opts;
    kvpy_keys_t keys;
    int *results, err;

    if (!kvpy_check(self) || !check_args("batch_locate", n, 3) || !take_opts(args + 1, &opts)) return NULL;
    if (!kvpy_keys_init(&keys, args[0])) return NULL;
    places = PyMem_New(kvpool_place_t, (size_t)keys.n + 1);
    results = PyMem_New(int, (size_t)keys.n + 1);
    if (results == NULL || places == NULL) {
        PyErr_NoMemory();
    } else {
        Py_BEGIN_ALLOW_THREADS
            err = kvpool_batch_locate(self->pool, keys.keys, (size_t)keys.n, &opts, places, results);
        Py_END_ALLOW_THREADS
        spread_err(err, results, keys.n);
        lookup_results(self, results, keys.n, KVPOOL_NOT_FOUND);
        list = list_of_places(self, places, results, keys.n, (opts.flags & KVPOOL_LINEAGES) != 0);
    }
    PyMem_Free(results);
    PyMem_Free(places);
    kvpy_keys_fini(&keys);
    return list;
}

/* ---- look-ups with reservations */
static PyObject *
make_reservation(const kvpool_lookup_t *l)
{
    return Py_BuildValue("(KIIIII)", (unsigned long long)l->ticket, l->found, l->granted, l->ttl_ms, l->on_ssd,
                         l->epoch);
}

static PyObject *
list_of_flags(const uint8_t *flags, Py_ssize_t n)
{
    PyObject *list = PyList_New(n);

    for (Py_ssize_t i = 0; list != NULL && i < n; i++)
        PyList_SetItem(list, i, PyBool_FromLong(flags[i]));
    return list;
}

/* Returns `present` as a bytes object for a look-up with KVPOOL_PLACES, else None. */
static PyObject *
bytes_of_places(const kvpool_opts_t *opts, const uint8_t *present, Py_ssize_t n)
{
    if ((opts->flags & KVPOOL_PLACES) != 0) return PyBytes_FromStringAndSize((const char *)present, n);
    Py_RETURN_NONE;
}

/* kvpool_lookup or kvpool_longest_prefix. */
typedef int (*lookup_fn)(kvpool_t *pool, const kvpool_key_t *keys, size_t n, uint32_t ttl_ms, const kvpool_opts_t *opts,
                         uint8_t *present, kvpool_lookup_t *lookup_out);

static PyObject *
look_up(const kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n, lookup_fn ask)
{
    PyObject *answer = NULL;
    kvpool_lookup_t lookup;
    kvpool_opts_t opts;
    kvpy_keys_t keys;
    uint8_t *present;
    uint64_t ttl_ms;
    int err;

    if (!take_opts(args + 2, &opts) || !take_epoch(args, n, 4, &opts)) return NULL;
    if (!kvpy_uint(args[1], UINT32_MAX, "ttl_ms", &ttl_ms) || !kvpy_keys_init(&keys, args[0])) return NULL;
    present = PyMem_New(uint8_t, (size_t)keys.n + 1);
    if (present == NULL) {
        PyErr_NoMemory();
    } else {
        Py_BEGIN_ALLOW_THREADS
            err = ask(self->pool, keys.keys, (size_t)keys.n, (uint32_t)ttl_ms, &opts, present, &lookup);
        Py_END_ALLOW_THREADS
        if (err != KVPOOL_OK)
            answer = PyLong_FromLong(kvpy_code(self, err));
        else if (ask == kvpool_lookup)
            answer = Py_BuildValue("(NNN)", make_reservation(&lookup), list_of_flags(present, keys.n),
                                   bytes_of_places(&opts, present, keys.n));
        else
            answer = Py_BuildValue("(NN)", make_reservation(&lookup), bytes_of_places(&opts, present, keys.n));
    }
    PyMem_Free(present);
    kvpy_keys_fini(&keys);
    return answer;
}

/* longest_prefix(keys, ttl_ms, deadline_ms, flags[, epoch]) -> an error number, or ((ticket, found, granted, ttl_ms,
 * on_ssd, epoch), places or None) */
PyObject *
kvpy_longest_prefix(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n)
{
    if (!kvpy_check(self) || !check_args("longest_prefix", n, n == 5 ? 5 : 4)) return NULL;
    return look_up(self, args, n, kvpool_longest_prefix);
}

/* lookup(keys, ttl_ms, deadline_ms, flags[, epoch]) -> an error number, or ((ticket, found, granted, ttl_ms, on_ssd,
 * epoch), [present], places or None) */
PyObject *
kvpy_lookup(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n)
{
    if (!kvpy_check(self) || !check_args("lookup", n, n == 5 ? 5 : 4)) return NULL;
    return look_up(self, args, n, kvpool_lookup);
}

/* lookup_release(ticket, found, granted) -> 0, or an error number */
PyObject *
kvpy_lookup_release(kvpy_pool_t *self, PyObject *const *args, Py_ssize_t n)
{
    uint64_t ticket, found, granted;
    kvpool_lookup_t lookup;
    int err;

    if (!kvpy_check(self) || !check_args("lookup_release", n, 3)) return NULL;
    if (!kvpy_uint(args[0], UINT64_MAX, "ticket", &ticket) || !kvpy_uint(args[1], UINT32_MAX, "found", &found) ||
        !kvpy_uint(args[2], UINT32_MAX, "granted", &granted))
        return NULL;
    lookup = (kvpool_lookup_t){.ticket = ticket, .found = (uint32_t)found, .granted = (uint32_t)granted};
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_lookup_release(self->pool, &lookup);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(kvpy_code(self, err));
}
