/* SPDX-License-Identifier: Apache-2.0
 * The handle: opening and closing, memory, and calls for single keys. Methods take only positional arguments, because
 * the Python layers above always pass all arguments. The comment of each method describes its arguments and result. */
#include "python/src/convert.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define DETAIL_BYTES 512
#define SSD_MAX 16
#define FIRST_GUESS 4096u /* first guess of an object's length; a short guess costs a second call of the library */
#define GUESS_KEPT (16u << 20) /* a guess up to this length stays when shorter values come */

#define CODE_INVALID (-600) /* the drop-in API's code for many different errors, so the name of the error is logged */

static void
tell_invalid(const kvpy_pool_t *self, int err)
{
    PyObject *done = PyObject_CallFunction(self->on_invalid, "ss", kvpool_errname(err), kvpool_strerror(err));

    if (done == NULL) PyErr_WriteUnraisable(self->on_invalid);
    Py_XDECREF(done);
}

long
kvpy_code(const kvpy_pool_t *self, int err)
{
    int code = -1;

    if (!self->is_dropin) return err;
    switch (err) {
#define KVPY_CODE(number, name, dropin, text)                                                                          \
    case number:                                                                                                       \
        code = dropin;                                                                                                 \
        break;
        KVPOOL_ERR_MAP(KVPY_CODE)
#undef KVPY_CODE
    }
    if (code == CODE_INVALID && self->on_invalid != NULL) tell_invalid(self, err);
    return code;
}

int
kvpy_lookup_err(const kvpy_pool_t *self, int err)
{
    return self->is_dropin && err == KVPOOL_BAD_KEY ? KVPOOL_NOT_FOUND : err;
}

bool
kvpy_check(const kvpy_pool_t *self)
{
    if (self->pool != NULL) return true;
    PyErr_SetString(PyExc_ValueError, "the pool was not opened");
    return false;
}

static PyObject *
number_or_code(const kvpy_pool_t *self, int err)
{
    return PyLong_FromLong(err < 0 ? kvpy_code(self, err) : err);
}

/* ---- create, open, close */
static int
pool_init(kvpy_pool_t *self, PyObject *args, PyObject *kw)
{
    static char name[] = "is_dropin"; /* name of an argument, as an array: before Python 3.13 the parser wants char * */
    static char *names[] = {name, NULL};
    int is_dropin = 0;

    if (!PyArg_ParseTupleAndKeywords(args, kw, "|p", names, &is_dropin)) return -1;
    self->is_dropin = is_dropin != 0;
    return 0;
}

/* Frees the handle, in whatever thread finds that it is garbage; this takes as long as a close. The close waits only
 * for the library's own threads, which never need the interpreter. No call is running, because each call has a
 * reference to the object. */
static void
pool_dealloc(kvpy_pool_t *self)
{
    kvpool_t *pool = self->pool;

    self->pool = NULL;
    if (pool != NULL) {
        Py_BEGIN_ALLOW_THREADS
            kvpool_free(pool);
        Py_END_ALLOW_THREADS
    }
    Py_CLEAR(self->on_invalid);
    kvpy_free_object(self);
}

/* Reads a tuple of str. The texts are borrowed from the tuple. */
static bool
texts_of(PyObject *tuple, const char *texts[SSD_MAX], size_t *n_out)
{
    *n_out = (size_t)PyTuple_Size(tuple);
    if (*n_out > SSD_MAX) {
        PyErr_Format(PyExc_ValueError, "at most %d SSDs", SSD_MAX);
        return false;
    }
    for (size_t i = 0; i < *n_out; i++) {
        texts[i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(tuple, (Py_ssize_t)i), NULL);
        if (texts[i] == NULL) return false;
    }
    return true;
}

/* open(master, name, host_id, transports, deadline_ms, verify, memory_bytes, listen, chunk_bytes, tenant, locations,
 * master_wait_ms[, ("DIR:SIZE", ...), ssd_writes, cluster]) -> (0 or an error number, detail). Strings may be None
 * and numbers 0, for the library's defaults. */
static PyObject *
pool_open(kvpy_pool_t *self, PyObject *args)
{
    kvpool_conf_t conf = {.struct_size = sizeof conf};
    char detail[DETAIL_BYTES] = "";
    const char *ssd[SSD_MAX];
    kvpool_t *pool = NULL;
    PyObject *devices = NULL;
    int err;

    if (!PyArg_ParseTuple(args, "zzzzO&O&O&zO&zO&O&|O!O&z", &conf.master, &conf.name, &conf.host_id, &conf.transports,
                          kvpy_u32, &conf.deadline_ms, kvpy_u32, &conf.verify, kvpy_u64, &conf.memory_bytes,
                          &conf.listen, kvpy_u64, &conf.chunk_bytes, &conf.tenant, kvpy_u32, &conf.locations, kvpy_u32,
                          &conf.master_wait_ms, &PyTuple_Type, &devices, kvpy_u64, &conf.ssd_writes, &conf.cluster) ||
        (devices != NULL && !texts_of(devices, ssd, &conf.ssd_n)))
        return NULL;
    conf.ssd = ssd;
    if (self->pool != NULL) return Py_BuildValue("(ls)", kvpy_code(self, KVPOOL_INVALID), "the pool is open already");
    self->deadline_ms = conf.deadline_ms;
    conf.detail = detail;
    conf.detail_cap = sizeof detail;
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_open(&conf, &pool);
    Py_END_ALLOW_THREADS
    if (pool != NULL && self->pool != NULL) { /* another thread has opened the pool meanwhile */
        Py_BEGIN_ALLOW_THREADS
            kvpool_free(pool);
        Py_END_ALLOW_THREADS
        return Py_BuildValue("(ls)", kvpy_code(self, KVPOOL_INVALID), "the pool is open already");
    }
    if (pool != NULL) self->pool = pool; /* a failed open does not replace another thread's pool */
    return Py_BuildValue("(lN)", kvpy_code(self, err),
                         PyUnicode_DecodeUTF8(detail, (Py_ssize_t)strlen(detail), "replace"));
}

/* close() -> 0, or an error number. Running calls of other threads end with CLOSED. */
static PyObject *
pool_close(kvpy_pool_t *self, PyObject *Py_UNUSED(args))
{
    int err = KVPOOL_OK;

    if (self->exports_n > 0) {
        PyErr_SetString(PyExc_BufferError, "a buffer of a view is still in use");
        return NULL;
    }
    if (self->pool != NULL) {
        self->is_closing = true;
        Py_BEGIN_ALLOW_THREADS
            err = kvpool_close(self->pool);
        Py_END_ALLOW_THREADS
    }
    return number_or_code(self, err);
}

/* on_invalid(callable): sets the function to call with name and text of an error that gets the code INVALID */
static PyObject *
pool_on_invalid(kvpy_pool_t *self, PyObject *args)
{
    PyObject *before = self->on_invalid, *fn;

    if (!PyArg_ParseTuple(args, "O", &fn)) return NULL;
    Py_INCREF(fn);
    self->on_invalid = fn;
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

/* why_unreachable() -> text: why no master can be reached */
static PyObject *
pool_why_unreachable(kvpy_pool_t *self, PyObject *Py_UNUSED(args))
{
    char text[DETAIL_BYTES] = "";

    if (!kvpy_check(self)) return NULL;
    Py_BEGIN_ALLOW_THREADS
        if (kvpool_why_unreachable(self->pool, text, sizeof text) != KVPOOL_OK) text[0] = '\0';
    Py_END_ALLOW_THREADS
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

/* unmount_ssd(deadline_ms) -> 0, or an error number */
static PyObject *
pool_unmount_ssd(kvpy_pool_t *self, PyObject *args)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts};
    int err;

    if (!kvpy_check(self) || !PyArg_ParseTuple(args, "O&", kvpy_u32, &opts.deadline_ms)) return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_unmount_ssd(self->pool, &opts);
    Py_END_ALLOW_THREADS
    return number_or_code(self, err);
}

/* ---- registered memory */
/* register(address, length) -> 0, or an error number */
static PyObject *
pool_register(kvpy_pool_t *self, PyObject *args)
{
    uint64_t addr, len;
    int err;

    if (!kvpy_check(self) || !PyArg_ParseTuple(args, "O&O&", kvpy_u64, &addr, kvpy_u64, &len)) return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_register(self->pool, (void *)(uintptr_t)addr, (size_t)len);
    Py_END_ALLOW_THREADS
    return number_or_code(self, err);
}

/* unregister(address) -> 0, or an error number */
static PyObject *
pool_unregister(kvpy_pool_t *self, PyObject *args)
{
    uint64_t addr;
    int err;

    if (!kvpy_check(self) || !PyArg_ParseTuple(args, "O&", kvpy_u64, &addr)) return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_unregister(self->pool, (void *)(uintptr_t)addr);
    Py_END_ALLOW_THREADS
    return number_or_code(self, err);
}

/* ---- single keys */
/* Puts a value. Device memory is put as a batch, which requires registration, because the processor would touch the
 * memory in a single put. */
static int
put_memory(const kvpy_pool_t *self, const kvpool_key_t *key, const kvpy_mem_t *mem, const kvpool_opts_t *opts)
{
    kvpool_iov_t piece = {mem->addr, mem->len};
    kvpool_item_t item = {.key = *key, .iov = &piece, .iov_n = 1, .lineage = opts->lineage};
    int err, result;

    if (!mem->is_device) return kvpy_put_one(self, key, mem->addr, mem->len, opts);
    err = kvpy_put_items(self, &item, 1, opts, &result);
    return err != KVPOOL_OK ? err : result;
}

static int
get_memory(kvpool_t *pool, const kvpool_key_t *key, const kvpy_mem_t *mem, const kvpool_opts_t *opts, size_t *len_out)
{
    kvpool_iov_t piece = {mem->addr, mem->len};
    kvpool_item_t item = {.key = *key, .iov = &piece, .iov_n = 1};
    int err, result;

    if (!mem->is_device) return kvpool_get(pool, key->data, key->len, mem->addr, mem->len, len_out, opts);
    err = kvpool_batch_get(pool, &item, 1, opts, &result);
    if (err == KVPOOL_OK) err = result;
    *len_out = item.len;
    return err;
}

/* put(key, object with memory, deadline_ms, flags, replicas, (preferred segment, ...)[, lineage or None[, epoch]]) ->
 * 0, or an error number */
static PyObject *
pool_put(kvpy_pool_t *self, PyObject *args)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts};
    PyObject *key_obj, *value, *where, *told = Py_None;
    uint32_t segments[KVPOOL_COPIES_MAX];
    kvpool_lineage_t lineage;
    kvpool_key_t key;
    kvpy_mem_t mem;
    int err;

    if (!kvpy_check(self) ||
        !PyArg_ParseTuple(args, "OOO&O&O&O|OO&", &key_obj, &value, kvpy_u32, &opts.deadline_ms, kvpy_u32, &opts.flags,
                          kvpy_u32, &opts.replicas, &where, &told, kvpy_u32, &opts.epoch) ||
        !kvpy_prefer(where, segments, &opts))
        return NULL;
    if (told != Py_None && !kvpy_lineage(told, &lineage)) return NULL;
    if (told != Py_None) opts.lineage = &lineage;
    if (!kvpy_key(key_obj, &key) || !kvpy_mem_init(&mem, value, false)) return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = put_memory(self, &key, &mem, &opts);
    Py_END_ALLOW_THREADS
    kvpy_mem_fini(&mem);
    return number_or_code(self, err);
}

/* Returns a guess of the length of the key's value. Before the first value it asks the library for the length, because
 * a get with a wrong guess is repeated, and the master counts both gets. */
static size_t
guess_length(kvpy_pool_t *self, const kvpool_key_t *key, const kvpool_opts_t *opts)
{
    size_t len = FIRST_GUESS;

    if (self->guess > 0) return self->guess;
    Py_BEGIN_ALLOW_THREADS
        if (kvpool_size(self->pool, key->data, key->len, &len, opts) != KVPOOL_OK) len = FIRST_GUESS;
    Py_END_ALLOW_THREADS
    return len;
}

/* Gets the key's value once, into `bytes`, which has the guessed length. */
static int
get_round(kvpy_pool_t *self, const kvpool_key_t *key, const kvpool_opts_t *opts, PyObject *bytes, size_t *len_out)
{
    char *buf = PyBytes_AsString(bytes);
    size_t cap = (size_t)PyBytes_Size(bytes);
    int err;

    Py_BEGIN_ALLOW_THREADS
        err = kvpool_get(self->pool, key->data, key->len, buf, cap, len_out, opts);
    Py_END_ALLOW_THREADS
    return err;
}

/* get(key, deadline_ms, flags[, epoch]) -> bytes, or an error number */
static PyObject *
pool_get(kvpy_pool_t *self, PyObject *args)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts};
    int err = KVPOOL_BUFFER_SMALL;
    PyObject *key_obj, *bytes = NULL, *longer;
    size_t len;
    kvpy_budget_t budget;
    kvpool_key_t key;

    if (!kvpy_check(self) || !PyArg_ParseTuple(args, "OO&O&|O&", &key_obj, kvpy_u32, &opts.deadline_ms, kvpy_u32,
                                               &opts.flags, kvpy_u32, &opts.epoch))
        return NULL;
    if (!kvpy_key(key_obj, &key)) return NULL;
    budget = kvpy_budget_begin(self, &opts);
    kvpy_budget_spend(&budget, 1, &opts);
    len = guess_length(self, &key, &opts);
    /* repeat with the value's length if the guess was too small, or a larger value has replaced the value */
    for (int round = 0; err == KVPOOL_BUFFER_SMALL && round < 4; round++) {
        Py_XDECREF(bytes);
        bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)len);
        if (bytes == NULL) return NULL;
        kvpy_budget_spend(&budget, 1, &opts);
        err = get_round(self, &key, &opts, bytes, &len);
    }
    if (err != KVPOOL_OK) {
        Py_DECREF(bytes);
        return number_or_code(self, kvpy_lookup_err(self, err));
    }
    if (len > self->guess || self->guess > GUESS_KEPT) self->guess = len;
    if (len == (size_t)PyBytes_Size(bytes)) return bytes;
    longer = bytes;
    bytes = PyBytes_FromStringAndSize(PyBytes_AsString(longer), (Py_ssize_t)len);
    Py_DECREF(longer);
    return bytes;
}

/* get_into(key, object with memory, deadline_ms, flags[, epoch]) -> length of the value, or an error number */
static PyObject *
pool_get_into(kvpy_pool_t *self, PyObject *args)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts};
    PyObject *key_obj, *target;
    kvpool_key_t key;
    kvpy_mem_t mem;
    size_t len = 0;
    int err;

    if (!kvpy_check(self) || !PyArg_ParseTuple(args, "OOO&O&|O&", &key_obj, &target, kvpy_u32, &opts.deadline_ms,
                                               kvpy_u32, &opts.flags, kvpy_u32, &opts.epoch))
        return NULL;
    if (!kvpy_key(key_obj, &key) || !kvpy_mem_init(&mem, target, true)) return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = get_memory(self->pool, &key, &mem, &opts, &len);
    Py_END_ALLOW_THREADS
    kvpy_mem_fini(&mem);
    return err == KVPOOL_OK ? PyLong_FromSize_t(len) : number_or_code(self, kvpy_lookup_err(self, err));
}

/* view(key, deadline_ms) -> View, or an error number */
static PyObject *
pool_view(kvpy_pool_t *self, PyObject *args)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts};
    PyObject *key_obj;
    kvpool_key_t key;

    if (!kvpy_check(self) || !PyArg_ParseTuple(args, "OO&", &key_obj, kvpy_u32, &opts.deadline_ms) ||
        !kvpy_key(key_obj, &key))
        return NULL;
    return kvpy_view(self, &key, &opts);
}

/* size(key, deadline_ms) -> length of the value, or an error number */
static PyObject *
pool_size(kvpy_pool_t *self, PyObject *args)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts};
    PyObject *key_obj;
    kvpool_key_t key;
    size_t len = 0;
    int err;

    if (!kvpy_check(self) || !PyArg_ParseTuple(args, "OO&", &key_obj, kvpy_u32, &opts.deadline_ms) ||
        !kvpy_key(key_obj, &key))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_size(self->pool, key.data, key.len, &len, &opts);
    Py_END_ALLOW_THREADS
    return err == KVPOOL_OK ? PyLong_FromSize_t(len) : number_or_code(self, kvpy_lookup_err(self, err));
}

/* exists(key, deadline_ms) -> 1, 0, or an error number */
static PyObject *
pool_exists(kvpy_pool_t *self, PyObject *args)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts};
    int exists = 0, err;
    PyObject *key_obj;
    kvpool_key_t key;

    if (!kvpy_check(self) || !PyArg_ParseTuple(args, "OO&", &key_obj, kvpy_u32, &opts.deadline_ms) ||
        !kvpy_key(key_obj, &key))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_exists(self->pool, key.data, key.len, &exists, &opts);
    Py_END_ALLOW_THREADS
    err = kvpy_lookup_err(self, err);
    return number_or_code(self, err == KVPOOL_OK || err == KVPOOL_NOT_FOUND ? exists : err);
}

/* remove(key, deadline_ms, flags) -> 0, or an error number */
static PyObject *
pool_remove(kvpy_pool_t *self, PyObject *args)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts};
    PyObject *key_obj;
    kvpool_key_t key;
    int err;

    if (!kvpy_check(self) ||
        !PyArg_ParseTuple(args, "OO&O&", &key_obj, kvpy_u32, &opts.deadline_ms, kvpy_u32, &opts.flags) ||
        !kvpy_key(key_obj, &key))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_remove(self->pool, key.data, key.len, &opts);
    Py_END_ALLOW_THREADS
    return number_or_code(self, kvpy_lookup_err(self, err));
}

/* remove_many(regular expression, or None = all keys; deadline_ms, flags) -> an error number, or (number removed,
 * number held) */
static PyObject *
pool_remove_many(kvpy_pool_t *self, PyObject *args)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts};
    uint64_t removed = 0, held = 0;
    const char *pattern;
    int err;

    if (!kvpy_check(self) ||
        !PyArg_ParseTuple(args, "zO&O&", &pattern, kvpy_u32, &opts.deadline_ms, kvpy_u32, &opts.flags))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = pattern != NULL ? kvpool_remove_by_regex(self->pool, pattern, &opts, &removed, &held)
                              : kvpool_remove_all(self->pool, &opts, &removed, &held);
    Py_END_ALLOW_THREADS
    if (err != KVPOOL_OK) return number_or_code(self, err);
    return Py_BuildValue("(KK)", (unsigned long long)removed, (unsigned long long)held);
}

/* bump(deadline_ms[, flags, epoch]) -> the new epoch, or an error number */
static PyObject *
pool_bump(kvpy_pool_t *self, PyObject *args)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts};
    uint32_t epoch = 0;
    int err;

    if (!kvpy_check(self) ||
        !PyArg_ParseTuple(args, "O&|O&O&", kvpy_u32, &opts.deadline_ms, kvpy_u32, &opts.flags, kvpy_u32, &opts.epoch))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_bump(self->pool, &opts, &epoch);
    Py_END_ALLOW_THREADS
    return err == KVPOOL_OK ? PyLong_FromUnsignedLong(epoch) : number_or_code(self, err);
}

/* ---- statistics */
/* Returns the JSON text of kvpool_explain for the key, or of kvpool_stat without a key; or an error number. */
static PyObject *
ask_json(kvpy_pool_t *self, const kvpool_key_t *key, kvpool_opts_t opts)
{
    kvpy_budget_t budget = kvpy_budget_begin(self, &opts);
    int err = KVPOOL_BUFFER_SMALL;
    size_t len = 16384;
    PyObject *text;
    char *buf = NULL;

    for (int round = 0; err == KVPOOL_BUFFER_SMALL && round < 4; round++) { /* the text may have grown meanwhile */
        size_t cap = len + 4096;

        free(buf);
        buf = malloc(cap);
        if (buf == NULL) return PyErr_NoMemory();
        kvpy_budget_spend(&budget, 1, &opts);
        Py_BEGIN_ALLOW_THREADS
            err = key == NULL ? kvpool_stat(self->pool, buf, cap, &len, &opts)
                              : kvpool_explain(self->pool, key->data, key->len, buf, cap, &len, &opts);
        Py_END_ALLOW_THREADS
    }
    text = err == KVPOOL_OK ? PyUnicode_DecodeUTF8(buf, (Py_ssize_t)len, "replace") : number_or_code(self, err);
    free(buf);
    return text;
}

/* stat(deadline_ms) -> JSON text, or an error number */
static PyObject *
pool_stat(kvpy_pool_t *self, PyObject *args)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts};

    if (!kvpy_check(self) || !PyArg_ParseTuple(args, "O&", kvpy_u32, &opts.deadline_ms)) return NULL;
    return ask_json(self, NULL, opts);
}

/* explain(key, deadline_ms, flags) -> JSON text, or an error number */
static PyObject *
pool_explain(kvpy_pool_t *self, PyObject *args)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts};
    PyObject *key_obj;
    kvpool_key_t key;

    if (!kvpy_check(self) ||
        !PyArg_ParseTuple(args, "OO&O&", &key_obj, kvpy_u32, &opts.deadline_ms, kvpy_u32, &opts.flags) ||
        !kvpy_key(key_obj, &key))
        return NULL;
    return ask_json(self, &key, opts);
}

/* drain(node, what, deadline_ms) -> 0 or an error number; what is one of KVPOOL_DRAIN_* */
static PyObject *
pool_drain(kvpy_pool_t *self, PyObject *args)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts};
    kvpool_drain_t drain = {.struct_size = sizeof drain};
    size_t len;
    int err;

    if (!kvpy_check(self) ||
        !PyArg_ParseTuple(args, "sO&O&", &drain.node, kvpy_u32, &drain.what, kvpy_u32, &opts.deadline_ms))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_drain(self->pool, &drain, NULL, 0, &len, &opts);
    Py_END_ALLOW_THREADS
    return number_or_code(self, err == KVPOOL_BUFFER_SMALL ? KVPOOL_OK : err); /* the progress is not read */
}

/* ---- tasks */
/* task_begin(key, from_segment, (segment, ...), deadline_ms) -> the task's id, or an error number */
static PyObject *
pool_task_begin(kvpy_pool_t *self, PyObject *args)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts};
    uint32_t from, n, to[KVPOOL_COPIES_MAX];
    PyObject *key_obj, *segments;
    uint64_t id = 0;
    kvpool_key_t key;
    int err;

    if (!kvpy_check(self) ||
        !PyArg_ParseTuple(args, "OO&OO&", &key_obj, kvpy_u32, &from, &segments, kvpy_u32, &opts.deadline_ms) ||
        !kvpy_key(key_obj, &key) || !kvpy_segments(segments, to, &n))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_task_begin(self->pool, key.data, key.len, from, to, n, &opts, &id);
    Py_END_ALLOW_THREADS
    return err == KVPOOL_OK ? PyLong_FromUnsignedLongLong(id) : number_or_code(self, err);
}

/* task_ask(id, deadline_ms) -> (state, is_move, failure's name, its text, created_ms, changed_ms), or an error number
 */
static PyObject *
pool_task_ask(kvpy_pool_t *self, PyObject *args)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts};
    kvpool_task_t task = {.struct_size = sizeof task};
    uint64_t id;
    int err;

    if (!kvpy_check(self) || !PyArg_ParseTuple(args, "O&O&", kvpy_u64, &id, kvpy_u32, &opts.deadline_ms)) return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_task_ask(self->pool, id, &opts, &task);
    Py_END_ALLOW_THREADS
    if (err != KVPOOL_OK) return number_or_code(self, err);
    return Py_BuildValue("(IIssKK)", task.state, task.is_move, kvpool_errname(task.failure),
                         kvpool_strerror(task.failure), (unsigned long long)task.created_ms,
                         (unsigned long long)task.changed_ms);
}

#define FAST(name)                                                                                                     \
    {                                                                                                                  \
#name, (PyCFunction)(void (*)(void))kvpy_##name, METH_FASTCALL, NULL                                           \
    }
#define PLAIN(name)                                                                                                    \
    {                                                                                                                  \
#name, (PyCFunction)(void (*)(void))pool_##name, METH_VARARGS, NULL                                            \
    }

static PyMethodDef methods[] = {
    PLAIN(open),
    PLAIN(close),
    PLAIN(on_invalid),
    PLAIN(why_unreachable),
    PLAIN(unmount_ssd),
    PLAIN(register),
    PLAIN(unregister),
    PLAIN(put),
    PLAIN(get),
    PLAIN(get_into),
    PLAIN(view),
    PLAIN(size),
    PLAIN(exists),
    PLAIN(remove),
    PLAIN(remove_many),
    PLAIN(bump),
    PLAIN(stat),
    PLAIN(explain),
    PLAIN(drain),
    PLAIN(task_begin),
    PLAIN(task_ask),
    FAST(batch_put),
    FAST(batch_get),
    FAST(batch_is_exist),
    FAST(batch_remove),
    FAST(batch_locate),
    FAST(longest_prefix),
    FAST(lookup),
    FAST(lookup_release),
    FAST(copy_ranges),
    {"list", (PyCFunction)(void (*)(void))kvpy_list, METH_VARARGS, NULL},
    {"put_parts", (PyCFunction)(void (*)(void))kvpy_put_parts, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)"A handle on a pool that returns numbers; see kvpool.Pool."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, pool_init},
    {Py_tp_dealloc, pool_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec kvpy_pool_spec = {"kvpool._kvpool.Pool", sizeof(kvpy_pool_t), 0, KVPY_TYPE_FLAGS, slots};
