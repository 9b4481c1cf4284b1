/* SPDX-License-Identifier: Apache-2.0
 * Asker: look-ups in a thread of its own. A scheduler that computes holds the interpreter's lock for milliseconds, so a
 * look-up by a Python thread would be sent late, and its answer would be late again. This thread never takes the lock:
 * ask() copies the hashes, the thread makes the keys and asks the pool, and take() returns a finished answer.
 *
 * The queue has at most QUESTIONS_MAX questions. A reservation whose question was dropped is released. */
#include "python/src/convert.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QUESTIONS_MAX 4096u
#define LOOKUPS_MAX 64u /* the most messages of one question, each with up to KVPOOL_BATCH_MAX keys */
#define PARTS_MAX 64

/* A part of a question: n keys with a common prefix. A key is the prefix, then a hash in hexadecimal digits. */
typedef struct {
    char *prefix; /* owned */
    size_t prefix_len, hash_len, n;
    uint8_t *hashes; /* owned: n hashes of hash_len bytes */
} part_t;

/* A question: which keys are in the pool? From ask() until is_over only the asker's thread uses it, then the caller. */
typedef struct question {
    struct question *next;
    uint64_t number;
    part_t *parts; /* owned; order of the keys: the first key of each part, then the second of each, and so on */
    int parts_n;
    size_t keys_n;
    bool is_prefix, is_over, is_dropped;
    uint32_t ttl_ms;
    kvpool_opts_t opts;
    /* The answer. */
    int err;
    kvpool_lookup_t lookups[LOOKUPS_MAX];
    uint32_t lookups_n;
    uint8_t *present; /* owned: keys_n bytes */
    double seconds;
} question_t;

typedef struct {
    PyObject_HEAD kvpy_pool_t *owner; /* the handle that is asked */
    pthread_t thread;
    pid_t pid; /* id of the process with the asker's thread; a forked child lacks the thread */
    bool has_thread;
    pthread_mutex_t lock; /* guards the fields below, and is_over and is_dropped of all questions */
    pthread_cond_t changed;
    question_t *questions; /* all questions, oldest first */
    question_t **end;
    size_t questions_n;
    bool is_closing;
} asker_t;

/* ---- the thread */
static void
free_question(question_t *q)
{
    for (int i = 0; i < q->parts_n; i++) {
        free(q->parts[i].prefix);
        free(q->parts[i].hashes);
    }
    free(q->parts);
    free(q->present);
    free(q);
}

static void
release_all(kvpool_t *pool, const question_t *q)
{
    for (uint32_t i = 0; i < q->lookups_n; i++)
        (void)kvpool_lookup_release(pool, &q->lookups[i]);
}

size_t
kvpy_hex(const uint8_t *bytes, size_t n, char *text)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < n; i++) {
        text[2 * i] = digits[bytes[i] >> 4];
        text[2 * i + 1] = digits[bytes[i] & 15];
    }
    return 2 * n;
}

/* Makes up to `most` keys, from key *row of part *part on, and moves this position past them. Returns the number of
 * keys. text has room for the keys. */
static size_t
make_keys(const question_t *q, size_t most, size_t *row, int *part, kvpool_key_t *keys, char *text)
{
    size_t n = 0;
    bool has_any = true;

    for (; n < most && has_any; ++*row, *part = 0) {
        has_any = false;
        for (; n < most && *part < q->parts_n; ++*part) {
            const part_t *p = &q->parts[*part];

            if (*row >= p->n) continue;
            has_any = true;
            keys[n].data = text;
            memcpy(text, p->prefix, p->prefix_len);
            text += p->prefix_len;
            text += kvpy_hex(p->hashes + *row * p->hash_len, p->hash_len, text);
            keys[n].len = (size_t)(text - (const char *)keys[n].data);
            n++;
        }
        if (*part < q->parts_n) break; /* `keys` is full within a row: the next call continues with this part */
    }
    return n;
}

static size_t
longest_key(const question_t *q)
{
    size_t longest = 0;

    for (int i = 0; i < q->parts_n; i++) {
        size_t len = q->parts[i].prefix_len + 2 * q->parts[i].hash_len;
        if (len > longest) longest = len;
    }
    return longest;
}

/* Looks up the keys of the question in the pool, with one message for each KVPOOL_BATCH_MAX keys. */
static void
look_up(kvpool_t *pool, question_t *q)
{
    size_t most = q->keys_n < KVPOOL_BATCH_MAX ? q->keys_n : KVPOOL_BATCH_MAX, row = 0, done = 0;
    kvpool_key_t *keys = malloc((most + 1) * sizeof *keys);
    char *text = malloc(most * longest_key(q) + 1);
    int part = 0;

    q->err = keys == NULL || text == NULL ? KVPOOL_NOMEM : KVPOOL_OK;
    while (q->err == KVPOOL_OK && done < q->keys_n && q->lookups_n < LOOKUPS_MAX) {
        kvpool_lookup_t *l = &q->lookups[q->lookups_n];
        size_t n = make_keys(q, most, &row, &part, keys, text);

        q->err = q->is_prefix ? kvpool_longest_prefix(pool, keys, n, q->ttl_ms, &q->opts, q->present + done, l)
                              : kvpool_lookup(pool, keys, n, q->ttl_ms, &q->opts, q->present + done, l);
        if (q->err != KVPOOL_OK) break;
        q->lookups_n++;
        done += n;
        if (q->is_prefix && l->found < n) break;
    }
    free(keys);
    free(text);
}

static question_t *
next_question(asker_t *self)
{
    for (question_t *q = self->questions; q != NULL; q = q->next)
        if (!q->is_over) return q;
    return NULL;
}

static void
remove_question(asker_t *self, question_t *q)
{
    question_t **at = &self->questions;

    while (*at != q)
        at = &(*at)->next;
    *at = q->next;
    if (self->end == &q->next) self->end = at;
    self->questions_n--;
}

static void *
answer_all(void *arg)
{
    asker_t *self = arg;
    kvpool_t *pool = self->owner->pool;
    question_t *q;

    pthread_mutex_lock(&self->lock);
    while (!self->is_closing) {
        double began;

        q = next_question(self);
        if (q == NULL) {
            pthread_cond_wait(&self->changed, &self->lock);
            continue;
        }
        if (!q->is_dropped) {
            pthread_mutex_unlock(&self->lock);
            began = kvpy_now_s();
            look_up(pool, q);
            q->seconds = kvpy_now_s() - began;
            pthread_mutex_lock(&self->lock);
        }
        q->is_over = true;
        if (!q->is_dropped) continue;
        release_all(pool, q);
        remove_question(self, q);
        free_question(q);
    }
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

/* ---- the object */
static bool
start_thread(asker_t *self)
{
    sigset_t all, before;
    int err;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    err = pthread_create(&self->thread, NULL, answer_all, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    self->has_thread = err == 0;
    self->pid = getpid();
    return self->has_thread;
}

/* Asker(pool): the thread runs until close(). pool has to be open. */
static PyObject *
asker_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kw))
{
    kvpy_pool_t *owner;
    asker_t *self;

    if (!PyArg_ParseTuple(args, "O!", kvpy_pool_type, &owner) || !kvpy_check(owner)) return NULL;
    self = (asker_t *)PyType_GenericAlloc(type, 0);
    if (self == NULL) return NULL;
    Py_INCREF((PyObject *)owner);
    self->owner = owner;
    self->end = &self->questions;
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->changed, NULL);
    if (start_thread(self)) return (PyObject *)self;
    Py_DECREF(self);
    PyErr_SetString(PyExc_OSError, "no thread can be started");
    return NULL;
}

static void
stop_thread(asker_t *self)
{
    if (!self->has_thread || self->pid != getpid()) return;
    self->has_thread = false;
    pthread_mutex_lock(&self->lock);
    self->is_closing = true;
    pthread_cond_signal(&self->changed);
    pthread_mutex_unlock(&self->lock);
    Py_BEGIN_ALLOW_THREADS
        pthread_join(self->thread, NULL);
    Py_END_ALLOW_THREADS
}

static void
asker_dealloc(asker_t *self)
{
    stop_thread(self);
    while (self->questions != NULL) {
        question_t *q = self->questions;

        remove_question(self, q);
        free_question(q);
    }
    pthread_mutex_destroy(&self->lock);
    pthread_cond_destroy(&self->changed);
    Py_XDECREF((PyObject *)self->owner);
    kvpy_free_object(self);
}

/* close(): waits for the look-up that runs, and ends the thread. Questions that were not asked get no answer. */
static PyObject *
asker_close(asker_t *self, PyObject *Py_UNUSED(args))
{
    stop_thread(self);
    Py_RETURN_NONE;
}

/* Copies n hashes of equal length from a sequence of bytes objects. Returns NULL with an exception set. */
uint8_t *
kvpy_hashes(PyObject *list, size_t *n_out, size_t *len_out)
{
    PyObject *seq = kvpy_tuple(list, "hashes are a sequence of bytes");
    Py_ssize_t n = seq == NULL ? 0 : PyTuple_Size(seq);
    uint8_t *hashes = NULL;
    size_t len = 0;

    for (Py_ssize_t i = 0; seq != NULL && i < n; i++) {
        PyObject *hash = PyTuple_GetItem(seq, i);
        Py_ssize_t size = 0;
        char *bytes = NULL;

        if ((!PyBytes_CheckExact(hash) && !PyBytes_Check(hash)) || PyBytes_AsStringAndSize(hash, &bytes, &size) < 0 ||
            size == 0 || size > 64 || (i > 0 && (size_t)size != len)) {
            PyErr_SetString(PyExc_TypeError, "hashes are bytes of one length, 1 to 64");
            break;
        }
        if (i == 0) {
            len = (size_t)size;
            hashes = malloc((size_t)n * len);
            if (hashes == NULL) {
                PyErr_NoMemory();
                break;
            }
        }
        memcpy(hashes + (size_t)i * len, bytes, len);
    }
    Py_XDECREF(seq);
    if (PyErr_Occurred()) {
        free(hashes);
        return NULL;
    }
    *n_out = (size_t)n;
    *len_out = len;
    return hashes != NULL ? hashes : calloc(1, 1);
}

static bool
take_part(PyObject *pair, part_t *part)
{
    PyObject *hashes;
    Py_ssize_t len;
    const char *prefix;

    if (!PyTuple_Check(pair) || !PyArg_ParseTuple(pair, "y#O", &prefix, &len, &hashes)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a part is (prefix: bytes, hashes)");
        return false;
    }
    if (len > KVPOOL_KEY_MAX - 128) {
        PyErr_SetString(PyExc_ValueError, "the prefix is too long");
        return false;
    }
    part->prefix = malloc((size_t)len + 1);
    part->hashes = part->prefix == NULL ? NULL : kvpy_hashes(hashes, &part->n, &part->hash_len);
    if (part->prefix == NULL) PyErr_NoMemory();
    if (part->prefix != NULL) memcpy(part->prefix, prefix, (size_t)len);
    part->prefix_len = (size_t)len;
    return part->hashes != NULL;
}

static bool
take_parts(PyObject *list, question_t *q)
{
    PyObject *seq = kvpy_tuple(list, "parts are a sequence of (prefix, hashes)");
    Py_ssize_t n = seq == NULL ? 0 : PyTuple_Size(seq);

    if (n > PARTS_MAX) PyErr_Format(PyExc_ValueError, "at most %d parts", PARTS_MAX);
    q->parts = calloc((size_t)n + 1, sizeof *q->parts);
    if (q->parts == NULL) PyErr_NoMemory();
    for (Py_ssize_t i = 0; !PyErr_Occurred() && i < n; i++) {
        q->parts_n++;
        if (!take_part(PyTuple_GetItem(seq, i), &q->parts[i])) break;
        q->keys_n += q->parts[i].n;
    }
    Py_XDECREF(seq);
    if (PyErr_Occurred()) return false;
    q->present = calloc(q->keys_n + 1, 1);
    if (q->present == NULL) PyErr_NoMemory();
    return q->present != NULL;
}

/* ask(number, parts, is_prefix, ttl_ms, deadline_ms, flags, epoch) -> bool. False: queue full, or asker closed. parts:
 * a sequence of (prefix: bytes, hashes: sequence of bytes). number: chosen by the caller for take and drop. */
static PyObject *
asker_ask(asker_t *self, PyObject *args)
{
    question_t *q = calloc(1, sizeof *q);
    PyObject *parts;
    bool is_taken;
    int is_prefix;

    if (q == NULL) return PyErr_NoMemory();
    q->opts.struct_size = sizeof q->opts;
    if (!PyArg_ParseTuple(args, "O&OpO&O&O&O&", kvpy_u64, &q->number, &parts, &is_prefix, kvpy_u32, &q->ttl_ms,
                          kvpy_u32, &q->opts.deadline_ms, kvpy_u32, &q->opts.flags, kvpy_u32, &q->opts.epoch) ||
        !take_parts(parts, q)) {
        free_question(q);
        return NULL;
    }
    q->is_prefix = is_prefix != 0;
    if (self->pid != getpid()) { /* in a forked child the thread that holds the lock may not exist */
        free_question(q);
        Py_RETURN_FALSE;
    }
    pthread_mutex_lock(&self->lock);
    is_taken = self->has_thread && self->questions_n < QUESTIONS_MAX;
    if (is_taken) {
        *self->end = q;
        self->end = &q->next;
        self->questions_n++;
        pthread_cond_signal(&self->changed);
    }
    pthread_mutex_unlock(&self->lock);
    if (!is_taken) free_question(q);
    return PyBool_FromLong(is_taken);
}

static question_t *
find_question(asker_t *self, uint64_t number)
{
    for (question_t *q = self->questions; q != NULL; q = q->next)
        if (q->number == number && !q->is_dropped) return q;
    return NULL;
}

static PyObject *
make_answer(const question_t *q)
{
    PyObject *lookups = PyTuple_New((Py_ssize_t)q->lookups_n);
    uint32_t ttl_ms = 0;

    for (uint32_t i = 0; lookups != NULL && i < q->lookups_n; i++) {
        const kvpool_lookup_t *l = &q->lookups[i];
        PyObject *one = Py_BuildValue("(KII)", (unsigned long long)l->ticket, l->found, l->granted);

        if (one == NULL) {
            Py_CLEAR(lookups);
            break;
        }
        PyTuple_SetItem(lookups, (Py_ssize_t)i, one);
        ttl_ms = l->ttl_ms;
    }
    if (lookups == NULL) return NULL;
    return Py_BuildValue("(iINy#d)", q->err, ttl_ms, lookups, (const char *)q->present, (Py_ssize_t)q->keys_n,
                         q->seconds);
}

/* take(number) -> None while there is no answer; then, once, (err, ttl_ms, tickets, present, seconds). tickets: for
 * each message (ticket, found, granted), for lookup_release of the pool. present: a byte for each key, as
 * of kvpool_lookup. KeyError: there is no such question. */
static PyObject *
asker_take(asker_t *self, PyObject *arg)
{
    question_t *q;
    PyObject *answer;
    uint64_t number;
    bool is_over;

    if (!kvpy_uint(arg, UINT64_MAX, "number", &number)) return NULL;
    pthread_mutex_lock(&self->lock);
    q = find_question(self, number);
    is_over = q != NULL && q->is_over;
    if (is_over) remove_question(self, q);
    pthread_mutex_unlock(&self->lock);
    if (q == NULL) {
        PyErr_SetObject(PyExc_KeyError, arg);
        return NULL;
    }
    if (!is_over) Py_RETURN_NONE;
    answer = make_answer(q);
    free_question(q);
    return answer;
}

/* drop(number): forgets the question. Its reservations are released, also if its look-up ends later. */
static PyObject *
asker_drop(asker_t *self, PyObject *arg)
{
    question_t *q;
    uint64_t number;
    bool is_over = false;

    if (!kvpy_uint(arg, UINT64_MAX, "number", &number)) return NULL;
    pthread_mutex_lock(&self->lock);
    q = find_question(self, number);
    if (q != NULL) {
        is_over = q->is_over;
        q->is_dropped = true;
        if (is_over) remove_question(self, q);
    }
    pthread_mutex_unlock(&self->lock);
    if (is_over) {
        release_all(self->owner->pool, q);
        free_question(q);
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"ask", (PyCFunction)(void (*)(void))asker_ask, METH_VARARGS, NULL},
    {"take", (PyCFunction)(void (*)(void))asker_take, METH_O, NULL},
    {"drop", (PyCFunction)(void (*)(void))asker_drop, METH_O, NULL},
    {"close", (PyCFunction)(void (*)(void))asker_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)"Look-ups in a thread of its own."},
    {Py_tp_new, asker_new},
    {Py_tp_dealloc, asker_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec kvpy_asker_spec = {"kvpool._kvpool.Asker", sizeof(asker_t), 0, KVPY_TYPE_FLAGS, slots};
