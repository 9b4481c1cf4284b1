/* SPDX-License-Identifier: Apache-2.0
 * The type Peer: an endpoint of peer-to-peer transfers (kvpool_p2p.h). Methods take only positional arguments and
 * return the library's numbers. The interpreter's lock is released around every call of the library. */
#include "python/src/convert.h"

#include "client/kvpool_p2p.h"

#include <stdlib.h>
#include <string.h>

#define DETAIL_BYTES 512

typedef struct {
    PyObject_HEAD kvpool_p2p_t *p2p; /* the library's endpoint; NULL = never opened */
} peer_t;

static void
peer_dealloc(peer_t *self)
{
    kvpool_p2p_t *p2p = self->p2p;

    self->p2p = NULL;
    if (p2p != NULL) {
        Py_BEGIN_ALLOW_THREADS
            kvpool_p2p_free(p2p);
        Py_END_ALLOW_THREADS
    }
    kvpy_free_object(self);
}

static bool
check_open(const peer_t *self)
{
    if (self->p2p != NULL) return true;
    PyErr_SetString(PyExc_ValueError, "the endpoint was not opened");
    return false;
}

/* open(listen, transports, deadline_ms, flags) -> (0 or an error number, detail). Strings may be None and numbers 0,
 * for the library's defaults. */
static PyObject *
peer_open(peer_t *self, PyObject *args)
{
    kvpool_p2p_conf_t conf = {.struct_size = sizeof conf};
    char detail[DETAIL_BYTES] = "";
    kvpool_p2p_t *p2p = NULL;
    int err;

    if (!PyArg_ParseTuple(args, "zzO&O&", &conf.listen, &conf.transports, kvpy_u32, &conf.deadline_ms, kvpy_u32,
                          &conf.flags))
        return NULL;
    conf.detail = detail;
    conf.detail_cap = sizeof detail;
    if (self->p2p != NULL) return Py_BuildValue("(is)", KVPOOL_INVALID, "the endpoint is open already");
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_p2p_open(&conf, &p2p);
    Py_END_ALLOW_THREADS
    if (p2p != NULL && self->p2p != NULL) { /* another thread has opened the endpoint meanwhile */
        Py_BEGIN_ALLOW_THREADS
            kvpool_p2p_free(p2p);
        Py_END_ALLOW_THREADS
        return Py_BuildValue("(is)", KVPOOL_INVALID, "the endpoint is open already");
    }
    if (p2p != NULL) self->p2p = p2p; /* a failed open does not replace another thread's endpoint */
    return Py_BuildValue("(iN)", err, PyUnicode_DecodeUTF8(detail, (Py_ssize_t)strlen(detail), "replace"));
}

/* close() -> 0, or an error number. Running calls of other threads end with CLOSED. */
static PyObject *
peer_close(peer_t *self, PyObject *Py_UNUSED(args))
{
    int err = KVPOOL_OK;

    if (self->p2p != NULL) {
        Py_BEGIN_ALLOW_THREADS
            err = kvpool_p2p_close(self->p2p);
        Py_END_ALLOW_THREADS
    }
    return PyLong_FromLong(err);
}

/* port() -> the port at which peers reach this endpoint; 0 before open */
static PyObject *
peer_port(peer_t *self, PyObject *Py_UNUSED(args))
{
    return PyLong_FromLong(kvpool_p2p_port(self->p2p));
}

/* pointer() -> the address of the kvpool_p2p_t, which the endpoint still owns; 0 = never opened */
static PyObject *
peer_pointer(peer_t *self, PyObject *Py_UNUSED(args))
{
    return PyLong_FromVoidPtr(self->p2p);
}

/* register(address, length) -> (0 or an error number, token): registers memory for peers */
static PyObject *
peer_register(peer_t *self, PyObject *const *args, Py_ssize_t n)
{
    uint64_t addr, len, token = 0;
    int err;

    if (!check_open(self) || n != 2 || !kvpy_uint(args[0], UINTPTR_MAX, "an address", &addr) ||
        !kvpy_uint(args[1], SIZE_MAX, "a length", &len)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "register takes 2 arguments");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_p2p_register(self->p2p, (void *)(uintptr_t)addr, (size_t)len, &token);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("(iK)", err, (unsigned long long)token);
}

/* alloc(length) -> (0 or an error number, address); dealloc(address) -> 0, or an error number */
static PyObject *
peer_alloc(peer_t *self, PyObject *len_obj)
{
    void *addr = NULL;
    uint64_t len;
    int err;

    if (!check_open(self) || !kvpy_uint(len_obj, SIZE_MAX, "a length", &len)) return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_p2p_alloc(self->p2p, (size_t)len, &addr, NULL);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("(iN)", err, PyLong_FromVoidPtr(addr));
}

static PyObject *
peer_dealloc_memory(peer_t *self, PyObject *addr_obj)
{
    uint64_t addr;
    int err;

    if (!check_open(self) || !kvpy_uint(addr_obj, UINTPTR_MAX, "an address", &addr)) return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_p2p_dealloc(self->p2p, (void *)(uintptr_t)addr);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(err);
}

/* unregister(address) -> 0, or an error number: ends the registration that begins at the address */
static PyObject *
peer_unregister(peer_t *self, PyObject *addr_obj)
{
    uint64_t addr;
    int err;

    if (!check_open(self) || !kvpy_uint(addr_obj, UINTPTR_MAX, "an address", &addr)) return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_p2p_unregister(self->p2p, (void *)(uintptr_t)addr);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(err);
}

/* ---- transfers */

/* Converts three lists of ints of the same length to operations. Returns false with an exception set. */
static bool
take_ops(PyObject *locals, PyObject *remotes, PyObject *lens, kvpool_p2p_op_t **ops_out, size_t *n_out)
{
    PyObject *lists[3] = {0}, *const given[3] = {locals, remotes, lens};
    kvpool_p2p_op_t *ops = NULL;
    bool is_ok = false;
    Py_ssize_t n = 0;

    for (int i = 0; i < 3; i++) {
        lists[i] = PySequence_Tuple(given[i]);
        if (lists[i] == NULL) goto done;
        n = PyTuple_Size(lists[0]);
        if (PyTuple_Size(lists[i]) == n) continue;
        PyErr_SetString(PyExc_ValueError, "as many addresses here, addresses there and lengths are expected");
        goto done;
    }
    ops = PyMem_New(kvpool_p2p_op_t, (size_t)n + 1);
    if (ops == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        uint64_t local, len;

        ops[i] = (kvpool_p2p_op_t){0};
        if (!kvpy_uint(PyTuple_GetItem(lists[0], i), UINTPTR_MAX, "an address", &local) ||
            !kvpy_uint(PyTuple_GetItem(lists[1], i), UINT64_MAX, "an address", &ops[i].remote) ||
            !kvpy_uint(PyTuple_GetItem(lists[2], i), SIZE_MAX, "a length", &len))
            goto done;
        ops[i].local = (void *)(uintptr_t)local;
        ops[i].len = (size_t)len;
    }
    is_ok = true;

done:
    for (int i = 0; i < 3; i++)
        Py_XDECREF(lists[i]);
    if (is_ok) {
        *ops_out = ops;
        *n_out = (size_t)n;
    } else {
        PyMem_Free(ops);
    }
    return is_ok;
}

typedef struct {
    const char *where;
    int kind;
    uint32_t deadline_ms;
    kvpool_p2p_op_t *ops;
    size_t n;
} transfer_t;

/* Reads the arguments of a transfer. The peer's name is borrowed from args. */
static bool
take_transfer(const peer_t *self, PyObject *args, transfer_t *t)
{
    PyObject *locals, *remotes, *lens;

    return check_open(self) &&
           PyArg_ParseTuple(args, "siOOOO&", &t->where, &t->kind, &locals, &remotes, &lens, kvpy_u32,
                            &t->deadline_ms) &&
           take_ops(locals, remotes, lens, &t->ops, &t->n);
}

/* transfer(peer, kind, local addresses, remote addresses, lengths, deadline_ms) -> 0, or an error number */
static PyObject *
peer_transfer(peer_t *self, PyObject *args)
{
    transfer_t t;
    int err;

    if (!take_transfer(self, args, &t)) return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_p2p_transfer(self->p2p, t.where, t.kind, t.ops, t.n, t.deadline_ms);
    Py_END_ALLOW_THREADS
    PyMem_Free(t.ops);
    return PyLong_FromLong(err);
}

/* submit(the arguments of transfer) -> (0 or an error number, id of the submitted transfer) */
static PyObject *
peer_submit(peer_t *self, PyObject *args)
{
    uint64_t id = 0;
    transfer_t t;
    int err;

    if (!take_transfer(self, args, &t)) return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_p2p_submit(self->p2p, t.where, t.kind, t.ops, t.n, t.deadline_ms, &id);
    Py_END_ALLOW_THREADS
    PyMem_Free(t.ops);
    return Py_BuildValue("(iK)", err, (unsigned long long)id);
}

/* poll(id, timeout_ms) -> (0 or an error number, result of the submitted transfer) */
static PyObject *
peer_poll(peer_t *self, PyObject *args)
{
    uint32_t timeout_ms;
    uint64_t id;
    int err, result = 0;

    if (!check_open(self) || !PyArg_ParseTuple(args, "O&O&", kvpy_u64, &id, kvpy_u32, &timeout_ms)) return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_p2p_poll(self->p2p, id, timeout_ms, &result);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("(ii)", err, result);
}

/* ---- questions, notifications and statistics */
/* first_range(peer, deadline_ms) -> (0 or an error number, address, length): the peer's range at the lowest address */
static PyObject *
peer_first_range(peer_t *self, PyObject *args)
{
    uint32_t deadline_ms;
    const char *where;
    uint64_t addr = 0;
    size_t len = 0;
    int err;

    if (!check_open(self) || !PyArg_ParseTuple(args, "sO&", &where, kvpy_u32, &deadline_ms)) return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_p2p_first_range(self->p2p, where, deadline_ms, &addr, &len);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("(iKn)", err, (unsigned long long)addr, (Py_ssize_t)len);
}

/* notify(peer, name, message, deadline_ms) -> 0, or an error number */
static PyObject *
peer_notify(peer_t *self, PyObject *args)
{
    const char *where, *name, *message;
    uint32_t deadline_ms;
    int err;

    if (!check_open(self) || !PyArg_ParseTuple(args, "sssO&", &where, &name, &message, kvpy_u32, &deadline_ms))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_p2p_notify(self->p2p, where, name, message, deadline_ms);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(err);
}

/* Decodes a text from a peer, which may contain bytes that are not UTF-8. */
static PyObject *
text_of(const char *text)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

/* take_notify() -> (name, message) of the oldest notification, or None */
static PyObject *
peer_take_notify(peer_t *self, PyObject *Py_UNUSED(args))
{
    char *name, *message;
    PyObject *pair;

    if (!check_open(self)) return NULL;
    if (kvpool_p2p_take_notify(self->p2p, &name, &message) != KVPOOL_OK) Py_RETURN_NONE;
    pair = Py_BuildValue("(NN)", text_of(name), text_of(message));
    free(name);
    return pair;
}

/* stat() -> {name: number}; empty after close */
static PyObject *
peer_stat(peer_t *self, PyObject *Py_UNUSED(args))
{
    kvpool_p2p_stat_t stat = {.struct_size = sizeof stat};

    if (!check_open(self)) return NULL;
    if (kvpool_p2p_stat(self->p2p, &stat) != KVPOOL_OK) return PyDict_New();
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "transfers", (unsigned long long)stat.transfers, "failed",
                         (unsigned long long)stat.failed, "cma_bytes", (unsigned long long)stat.cma_bytes,
                         "mapped_bytes", (unsigned long long)stat.mapped_bytes, "rdma_bytes",
                         (unsigned long long)stat.rdma_bytes, "tcp_bytes", (unsigned long long)stat.tcp_bytes,
                         "connects", (unsigned long long)stat.connects);
}

static PyMethodDef methods[] = {
    {"open", (PyCFunction)peer_open, METH_VARARGS, NULL},
    {"close", (PyCFunction)peer_close, METH_NOARGS, NULL},
    {"port", (PyCFunction)peer_port, METH_NOARGS, NULL},
    {"pointer", (PyCFunction)peer_pointer, METH_NOARGS, NULL},
    {"register", (PyCFunction)(void (*)(void))peer_register, METH_FASTCALL, NULL},
    {"unregister", (PyCFunction)peer_unregister, METH_O, NULL},
    {"alloc", (PyCFunction)peer_alloc, METH_O, NULL},
    {"dealloc", (PyCFunction)peer_dealloc_memory, METH_O, NULL},
    {"transfer", (PyCFunction)peer_transfer, METH_VARARGS, NULL},
    {"submit", (PyCFunction)peer_submit, METH_VARARGS, NULL},
    {"poll", (PyCFunction)peer_poll, METH_VARARGS, NULL},
    {"first_range", (PyCFunction)peer_first_range, METH_VARARGS, NULL},
    {"notify", (PyCFunction)peer_notify, METH_VARARGS, NULL},
    {"take_notify", (PyCFunction)peer_take_notify, METH_NOARGS, NULL},
    {"stat", (PyCFunction)peer_stat, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)"An endpoint of peer-to-peer transfers that returns numbers; see mooncake.engine."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, peer_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec kvpy_peer_spec = {"kvpool._kvpool.Peer", sizeof(peer_t), 0, KVPY_TYPE_FLAGS, slots};
