/* SPDX-License-Identifier: Apache-2.0
 * Job: moves blocks of an engine's cache to or from the pool. An object is one block: for each piece of the layout, the
 * bytes at base + block * stride. Several threads may get one job at once: each takes the next slice, in the order of
 * the blocks, so the blocks arrive from the first one on, and no slice is too long for the time that is left. */
#include "python/src/convert.h"

#include <structmember.h>

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define PIECES_MAX 1024
#define SLICE_SHARE 8.0 /* a thread's next slice of blocks takes at most 1/8 of the time left, at its last rate */
#define SLICE_FIRST_BYTES (1u << 20) /* bytes of a slice of blocks while no transfer rate is known */
#define SLICE_MAX_BYTES (32u << 20)
#define PUT_ITEMS_MAX 256u
#define DEADLINE_MAX_S 3600.0

typedef struct {
    uint64_t base, stride, len;
} piece_t;

typedef struct {
    PyObject_HEAD kvpy_pool_t *owner; /* the handle of the pool */
    piece_t *pieces;
    size_t pieces_n, block_bytes;
    size_t n; /* number of blocks */
    int64_t *blocks; /* the index of each block in the engine's cache */
    uint8_t *hashes;
    size_t hash_len;
    char *keys; /* the keys, key_len bytes each; a key ends with its hash in hexadecimal digits */
    size_t key_len;
    char *groups; /* ids of the groups, group_len bytes each; NULL = the objects have no groups */
    size_t group_len;
    uint32_t members, member;
    bool has_lineages;
    uint64_t parent; /* the lineage's `sequence` of the block before the job's first block */
    uint32_t depth;
    int *results; /* result of each block: 0 or an error; CANCELLED = the block was not tried */
    pthread_mutex_t lock; /* guards the fields below */
    size_t next; /* the first block that no slice has */
    size_t good_to; /* the first block that failed, or n */
    uint64_t arrived; /* number of blocks that arrived */
    bool is_stopped;
} job_t;

/* The arrays that one call of kvpool_batch_get or kvpool_batch_put needs. */
typedef struct {
    kvpool_item_t *items;
    kvpool_iov_t *iovs;
    kvpool_group_t *groups;
    kvpool_lineage_t *lineages;
    size_t most; /* the items that fit */
} batch_t;

static uint64_t
low_of(const job_t *self, size_t i)
{
    const uint8_t *hash = self->hashes + i * self->hash_len;
    uint64_t low = 0;

    for (size_t k = self->hash_len > 8 ? self->hash_len - 8 : 0; k < self->hash_len; k++)
        low = low << 8 | hash[k];
    return low;
}

static void
batch_free(batch_t *b)
{
    free(b->items);
    free(b->iovs);
    free(b->groups);
    free(b->lineages);
}

static bool
batch_make(const job_t *self, size_t most, batch_t *b)
{
    *b = (batch_t){
        .items = calloc(most + 1, sizeof *b->items),
        .iovs = malloc((most * self->pieces_n + 1) * sizeof *b->iovs),
        .groups = malloc((most + 1) * sizeof *b->groups),
        .lineages = malloc((most + 1) * sizeof *b->lineages),
        .most = most,
    };
    if (b->items != NULL && b->iovs != NULL && b->groups != NULL && b->lineages != NULL) return true;
    batch_free(b);
    return false;
}

/* Fills the items of n blocks, from block `first` on. */
static void
batch_fill(const job_t *self, size_t first, size_t n, batch_t *b)
{
    for (size_t k = 0; k < n; k++) {
        size_t i = first + k;
        kvpool_iov_t *iov = b->iovs + k * self->pieces_n;

        for (size_t p = 0; p < self->pieces_n; p++) {
            const piece_t *piece = &self->pieces[p];

            iov[p].addr = (void *)(uintptr_t)(piece->base + (uint64_t)self->blocks[i] * piece->stride);
            iov[p].len = piece->len;
        }
        b->items[k] = (kvpool_item_t){
            .key = {self->keys + i * self->key_len, self->key_len}, .iov = iov, .iov_n = self->pieces_n};
        if (self->groups != NULL) {
            b->groups[k] = (kvpool_group_t){.id = {self->groups + i * self->group_len, self->group_len},
                                            .members = self->members,
                                            .member = self->member};
            b->items[k].group = &b->groups[k];
        }
        if (self->has_lineages) {
            b->lineages[k] = (kvpool_lineage_t){.sequence = low_of(self, i),
                                                .parent = i == 0 ? self->parent : low_of(self, i - 1),
                                                .depth = self->depth + (uint32_t)i};
            b->items[k].lineage = &b->lineages[k];
        }
    }
}

/* ---- getting */
/* Takes the next slice of blocks for a thread: at most `most` blocks. Returns their number; 0 = no block is left, the
 * job was stopped, or with ends_at_failure a block has failed. */
static size_t
take_slice(job_t *self, size_t most, bool ends_at_failure, size_t *first_out)
{
    size_t n = 0;

    pthread_mutex_lock(&self->lock);
    if (!self->is_stopped && (!ends_at_failure || self->good_to == self->n)) {
        n = self->n - self->next < most ? self->n - self->next : most;
        *first_out = self->next;
        self->next += n;
    }
    pthread_mutex_unlock(&self->lock);
    return n;
}

static void
note_results(job_t *self, size_t first, size_t n, uint64_t arrived)
{
    size_t bad = first;

    while (bad < first + n && self->results[bad] == KVPOOL_OK)
        bad++;
    pthread_mutex_lock(&self->lock);
    self->arrived += arrived;
    if (bad < first + n && bad < self->good_to) self->good_to = bad;
    pthread_mutex_unlock(&self->lock);
}

static size_t
slice_blocks(const job_t *self, double rate, double left_s)
{
    double bytes = rate > 0 ? rate * left_s / SLICE_SHARE : SLICE_FIRST_BYTES;
    size_t blocks;

    if (bytes > SLICE_MAX_BYTES) bytes = SLICE_MAX_BYTES;
    blocks = (size_t)(bytes / (double)self->block_bytes);
    if (blocks > KVPOOL_BATCH_MAX) blocks = KVPOOL_BATCH_MAX;
    return blocks > 0 ? blocks : 1;
}

/* The time limit of a load: patience_s after its begin, extended by each block that arrives, at most max_s after the
 * begin (kvpool/vllm/cost.py). */
typedef struct {
    double begin_s, patience_s, block_s, growth_s, max_s;
} term_t;

static double
end_of(job_t *self, const term_t *term)
{
    double arrived, s;

    pthread_mutex_lock(&self->lock);
    arrived = (double)self->arrived;
    pthread_mutex_unlock(&self->lock);
    s = term->patience_s + arrived * (term->block_s + arrived * term->growth_s);
    return term->begin_s + (s < term->max_s ? s : term->max_s);
}

/* Gets the blocks of one slice from the pool. Returns the number of bytes that arrived. */
static uint64_t
get_slice(job_t *self, size_t first, size_t n, batch_t *b, kvpool_opts_t *opts, int *err_out)
{
    uint64_t arrived = 0;

    batch_fill(self, first, n, b);
    *err_out = kvpool_batch_get(self->owner->pool, b->items, n, opts, self->results + first);
    for (size_t i = 0; i < n; i++) {
        int *result = &self->results[first + i];

        if (*err_out != KVPOOL_OK)
            *result = *err_out;
        else if (*result == KVPOOL_OK && b->items[i].len != self->block_bytes)
            *result = KVPOOL_BUFFER_SMALL; /* another length: no block of this layout */
        arrived += *result == KVPOOL_OK;
    }
    note_results(self, first, n, arrived);
    return arrived * self->block_bytes;
}

/* Gets slices of blocks until no block is left or the time is over. *bytes_out is the number of bytes that arrived. */
static int
get_slices(job_t *self, const term_t *term, double rate, bool ends_at_failure, kvpool_opts_t *opts, uint64_t *bytes_out)
{
    double began = kvpy_now_s(), left_s = end_of(self, term) - began;
    batch_t b = {.most = 0};
    size_t first = 0, n;
    int err = KVPOOL_OK;

    while (err == KVPOOL_OK && left_s > 1e-3) {
        uint64_t bytes;
        double took;

        n = take_slice(self, slice_blocks(self, rate, left_s), ends_at_failure, &first);
        if (n == 0) break;
        if (n > b.most) {
            batch_free(&b);
            if (!batch_make(self, n, &b)) {
                note_results(self, first, n, 0);
                return KVPOOL_NOMEM;
            }
        }
        opts->deadline_ms = left_s < DEADLINE_MAX_S ? (uint32_t)(left_s * 1e3) : (uint32_t)(DEADLINE_MAX_S * 1e3);
        bytes = get_slice(self, first, n, &b, opts, &err);
        *bytes_out += bytes;
        took = kvpy_now_s() - began;
        began += took;
        rate = took > 0 && bytes > 0 ? (double)bytes / took : 1;
        left_s = end_of(self, term) - began;
    }
    batch_free(&b);
    return err;
}

/* get(begin_s, patience_s, block_s, growth_s, max_s, rate, ends_at_failure, flags, epoch) -> (error number, bytes that
 * arrived, seconds). Any number of threads may call it for one job, also when all is done. The times are those of
 * cost.Choice; begin_s is by CLOCK_MONOTONIC. rate: bytes a second that one thread may expect, 0 = unknown.
 * ends_at_failure: begin no slice after a block failed. After the return of all calls nothing writes to the blocks. */
static PyObject *
job_get(job_t *self, PyObject *args)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts};
    double rate, began = kvpy_now_s();
    uint64_t bytes = 0;
    term_t term;
    int ends, err;

    if (!PyArg_ParseTuple(args, "ddddddpO&O&", &term.begin_s, &term.patience_s, &term.block_s, &term.growth_s,
                          &term.max_s, &rate, &ends, kvpy_u32, &opts.flags, kvpy_u32, &opts.epoch))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = get_slices(self, &term, rate, ends != 0, &opts, &bytes);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("(iKd)", err, (unsigned long long)bytes, kvpy_now_s() - began);
}

/* ---- putting */
static int
put_all(job_t *self, kvpool_opts_t *opts, double end_s)
{
    size_t most = self->n < PUT_ITEMS_MAX ? self->n : PUT_ITEMS_MAX, first, n;
    int err = KVPOOL_OK;
    batch_t b;

    if (!batch_make(self, most, &b)) return KVPOOL_NOMEM;
    while (err == KVPOOL_OK && (n = take_slice(self, most, false, &first)) > 0) {
        double left_s = end_s - kvpy_now_s();

        batch_fill(self, first, n, &b);
        opts->deadline_ms = left_s > 1e-3 ? (uint32_t)(left_s * 1e3) : 1;
        err = kvpool_batch_put(self->owner->pool, b.items, n, opts, self->results + first);
        for (size_t i = first; err != KVPOOL_OK && i < first + n; i++)
            self->results[i] = err;
    }
    batch_free(&b);
    return err;
}

/* put(end_s, flags, epoch) -> (error number, seconds): puts the blocks. end_s: the call's end, by CLOCK_MONOTONIC. */
static PyObject *
job_put(job_t *self, PyObject *args)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts};
    double end_s, began = kvpy_now_s();
    int err;

    if (!PyArg_ParseTuple(args, "dO&O&", &end_s, kvpy_u32, &opts.flags, kvpy_u32, &opts.epoch)) return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = put_all(self, &opts, end_s);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("(id)", err, kvpy_now_s() - began);
}

/* ---- the object */
/* results() -> a list: 0 or an error number for each block, CANCELLED for a block that was not tried. Call it when no
 * thread is in get() or put(). */
static PyObject *
job_results(job_t *self, PyObject *Py_UNUSED(args))
{
    PyObject *list = PyList_New((Py_ssize_t)self->n);

    for (size_t i = 0; list != NULL && i < self->n; i++)
        kvpy_list_set(&list, (Py_ssize_t)i, PyLong_FromLong(self->results[i]));
    return list;
}

/* key(i) -> bytes: the key of block i. */
static PyObject *
job_key(job_t *self, PyObject *arg)
{
    uint64_t i;

    if (self->n == 0) return PyErr_Format(PyExc_ValueError, "the job has no blocks");
    if (!kvpy_uint(arg, self->n - 1, "a block", &i)) return NULL;
    return PyBytes_FromStringAndSize(self->keys + i * self->key_len, (Py_ssize_t)self->key_len);
}

/* stop(): no further slice is begun. */
static PyObject *
job_stop(job_t *self, PyObject *Py_UNUSED(args))
{
    pthread_mutex_lock(&self->lock);
    self->is_stopped = true;
    pthread_mutex_unlock(&self->lock);
    Py_RETURN_NONE;
}

static void
job_dealloc(job_t *self)
{
    free(self->pieces);
    free(self->blocks);
    free(self->hashes);
    free(self->keys);
    free(self->groups);
    free(self->results);
    pthread_mutex_destroy(&self->lock);
    Py_XDECREF((PyObject *)self->owner);
    kvpy_free_object(self);
}

/* Copies the layout: a buffer of pieces, three numbers of 64 bits each (base, stride, length). */
static bool
take_layout(job_t *self, const Py_buffer *layout)
{
    self->pieces_n = (size_t)layout->len / sizeof(piece_t);
    if (self->pieces_n == 0 || self->pieces_n > PIECES_MAX || (size_t)layout->len % sizeof(piece_t) != 0) {
        PyErr_Format(PyExc_ValueError, "a layout has 1 to %d pieces of 24 bytes", PIECES_MAX);
        return false;
    }
    self->pieces = malloc((size_t)layout->len);
    if (self->pieces == NULL) {
        PyErr_NoMemory();
        return false;
    }
    memcpy(self->pieces, layout->buf, (size_t)layout->len);
    for (size_t i = 0; i < self->pieces_n; i++)
        self->block_bytes += self->pieces[i].len;
    if (self->block_bytes == 0) PyErr_SetString(PyExc_ValueError, "a block has no bytes");
    return self->block_bytes > 0;
}

static bool
take_blocks(job_t *self, PyObject *list)
{
    PyObject *seq = kvpy_tuple(list, "blocks are a sequence of int");

    if (seq != NULL && (size_t)PyTuple_Size(seq) != self->n)
        PyErr_SetString(PyExc_ValueError, "as many blocks as hashes are needed");
    self->blocks = malloc((self->n + 1) * sizeof *self->blocks);
    self->results = malloc((self->n + 1) * sizeof *self->results);
    if (self->blocks == NULL || self->results == NULL) PyErr_NoMemory();
    for (size_t i = 0; !PyErr_Occurred() && i < self->n; i++) {
        self->results[i] = KVPOOL_CANCELLED;
        self->blocks[i] = PyLong_AsLongLong(PyTuple_GetItem(seq, (Py_ssize_t)i));
        if (self->blocks[i] < 0 && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a block is 0 or more");
    }
    Py_XDECREF(seq);
    return !PyErr_Occurred();
}

/* Makes a name of *len_out bytes for each block: the prefix, then the block's hash in hexadecimal digits. Returns the
 * names one after the other; the caller frees them. NULL with an exception set. */
static char *
make_names(const job_t *self, const char *prefix, Py_ssize_t prefix_len, size_t *len_out)
{
    size_t len = (size_t)prefix_len + 2 * self->hash_len;
    char *names = len > KVPOOL_KEY_MAX ? NULL : malloc(self->n * len + 1);

    *len_out = len;
    if (len > KVPOOL_KEY_MAX)
        PyErr_SetString(PyExc_ValueError, "the prefix is too long");
    else if (names == NULL)
        PyErr_NoMemory();
    for (size_t i = 0; names != NULL && i < self->n; i++) {
        memcpy(names + i * len, prefix, (size_t)prefix_len);
        (void)kvpy_hex(self->hashes + i * self->hash_len, self->hash_len, names + i * len + prefix_len);
    }
    return names;
}

/* Job(pool, layout, prefix, hashes, blocks, group=None, lineage=None). The key of a block is prefix (bytes) + hash in
 * hexadecimal digits. group: (prefix of the group's id: bytes, members, member). lineage: (parent of the first block,
 * its depth); the low 64 bits of a hash are a block's sequence. The caller keeps the memory of the layout alive. */
static PyObject *
job_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kw))
{
    PyObject *hashes, *blocks, *group = Py_None, *lineage = Py_None;
    const char *prefix, *group_prefix;
    Py_ssize_t prefix_len, group_len;
    kvpy_pool_t *owner;
    Py_buffer layout;
    job_t *self;
    bool is_well;

    if (!PyArg_ParseTuple(args, "O!y*y#OO|OO", kvpy_pool_type, &owner, &layout, &prefix, &prefix_len, &hashes, &blocks,
                          &group, &lineage))
        return NULL;
    self = kvpy_check(owner) ? (job_t *)PyType_GenericAlloc(type, 0) : NULL;
    if (self == NULL) {
        PyBuffer_Release(&layout);
        return NULL;
    }
    Py_INCREF((PyObject *)owner);
    self->owner = owner;
    pthread_mutex_init(&self->lock, NULL);
    is_well = take_layout(self, &layout);
    PyBuffer_Release(&layout);
    if (is_well) self->hashes = kvpy_hashes(hashes, &self->n, &self->hash_len);
    is_well = self->hashes != NULL && take_blocks(self, blocks);
    self->good_to = self->n;
    if (is_well) self->keys = make_names(self, prefix, prefix_len, &self->key_len);
    is_well = self->keys != NULL;
    if (is_well && group != Py_None) {
        is_well = PyTuple_Check(group) && PyArg_ParseTuple(group, "y#O&O&", &group_prefix, &group_len, kvpy_u32,
                                                           &self->members, kvpy_u32, &self->member) != 0;
        if (is_well) self->groups = make_names(self, group_prefix, group_len, &self->group_len);
        is_well = self->groups != NULL;
    }
    if (is_well && lineage != Py_None) {
        is_well = PyTuple_Check(lineage) &&
                  PyArg_ParseTuple(lineage, "O&O&", kvpy_u64, &self->parent, kvpy_u32, &self->depth) != 0;
        self->has_lineages = is_well;
    }
    if (is_well) return (PyObject *)self;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "group and lineage are None or tuples");
    Py_DECREF(self);
    return NULL;
}

static PyMethodDef methods[] = {
    {"get", (PyCFunction)(void (*)(void))job_get, METH_VARARGS, NULL},
    {"put", (PyCFunction)(void (*)(void))job_put, METH_VARARGS, NULL},
    {"results", (PyCFunction)(void (*)(void))job_results, METH_NOARGS, NULL},
    {"key", (PyCFunction)(void (*)(void))job_key, METH_O, NULL},
    {"stop", (PyCFunction)(void (*)(void))job_stop, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"block_bytes", T_PYSSIZET, offsetof(job_t, block_bytes), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static Py_ssize_t
job_length(job_t *self)
{
    return (Py_ssize_t)self->n;
}

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)"Blocks of an engine's cache on their way to or from the pool."},
    {Py_tp_new, job_new},
    {Py_tp_dealloc, job_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_sq_length, job_length},
    {0, NULL},
};

PyType_Spec kvpy_job_spec = {"kvpool._kvpool.Job", sizeof(job_t), 0, KVPY_TYPE_FLAGS, slots};
