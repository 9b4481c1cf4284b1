/* SPDX-License-Identifier: Apache-2.0
 * Views: an object's bytes in place, read-only, by the buffer protocol. The memory of a view is valid only while the
 * handle is open. So while a buffer of a view is exported, the handle cannot be closed and the view cannot be
 * released, as with mmap. */
#include "python/src/ext.h"

typedef struct {
    PyObject_HEAD kvpy_pool_t *pool; /* the handle of the view's pool; NULL = the view was never made */
    kvpool_view_t view; /* the library's view; view.handle NULL = released */
    Py_ssize_t exports_n;
} kvpy_view_t;

/* Releases the view. STALE: the object was replaced or removed meanwhile, so the bytes that were read are invalid. */
static int
end_view(kvpy_view_t *self)
{
    kvpool_view_t view = self->view; /* the view is copied here, before another thread may release it */
    int err;

    if (view.handle == NULL) return KVPOOL_OK;
    self->view = (kvpool_view_t){.handle = NULL};
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_view_release(self->pool->pool, &view);
    Py_END_ALLOW_THREADS
    return err;
}

static void
view_dealloc(kvpy_view_t *self)
{
    if (self->pool != NULL) (void)end_view(self);
    Py_XDECREF((PyObject *)self->pool);
    kvpy_free_object(self);
}

static int
view_getbuffer(kvpy_view_t *self, Py_buffer *buf, int flags)
{
    if (self->pool == NULL || self->view.handle == NULL || self->pool->is_closing) {
        buf->obj = NULL;
        PyErr_SetString(PyExc_BufferError, "the view was released, or its pool closed");
        return -1;
    }
    if (PyBuffer_FillInfo(buf, (PyObject *)self, (void *)self->view.data, (Py_ssize_t)self->view.len, 1, flags) < 0)
        return -1;
    self->exports_n++;
    self->pool->exports_n++;
    return 0;
}

static void
view_releasebuffer(kvpy_view_t *self, Py_buffer *Py_UNUSED(buf))
{
    self->exports_n--;
    self->pool->exports_n--;
}

/* release() -> 0, or an error number. A second release does nothing. */
static PyObject *
view_release(kvpy_view_t *self, PyObject *Py_UNUSED(args))
{
    if (self->exports_n > 0) {
        PyErr_SetString(PyExc_BufferError, "a buffer of the view is still in use");
        return NULL;
    }
    return PyLong_FromLong(self->pool != NULL ? kvpy_code(self->pool, end_view(self)) : 0);
}

static Py_ssize_t
view_length(kvpy_view_t *self)
{
    return self->view.handle != NULL ? (Py_ssize_t)self->view.len : 0;
}

static PyMethodDef methods[] = {
    {"release", (PyCFunction)(void (*)(void))view_release, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)"An object's bytes where they lie."},
    {Py_tp_dealloc, view_dealloc},
    {Py_tp_methods, methods},
    {Py_bf_getbuffer, view_getbuffer},
    {Py_bf_releasebuffer, view_releasebuffer},
    {Py_sq_length, view_length},
    {0, NULL},
};

PyType_Spec kvpy_view_spec = {"kvpool._kvpool.View", sizeof(kvpy_view_t), 0,
                              KVPY_TYPE_FLAGS | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

/* view(key, deadline_ms) -> View, or an error number */
PyObject *
kvpy_view(kvpy_pool_t *self, const kvpool_key_t *key, const kvpool_opts_t *opts)
{
    kvpy_view_t *view = PyObject_New(kvpy_view_t, kvpy_view_type);
    int err;

    if (view == NULL) return NULL;
    Py_INCREF((PyObject *)self);
    view->pool = self;
    view->view = (kvpool_view_t){.handle = NULL};
    view->exports_n = 0;
    Py_BEGIN_ALLOW_THREADS
        err = kvpool_view(self->pool, key->data, key->len, opts, &view->view);
    Py_END_ALLOW_THREADS
    if (err == KVPOOL_OK) return (PyObject *)view;
    Py_DECREF(view);
    return PyLong_FromLong(kvpy_code(self, err));
}
