/* SPDX-License-Identifier: Apache-2.0
 * The module kvpool._kvpool: its types, flags and table of errors, and functions for bytes at addresses of this
 * process. */
#include "python/src/convert.h"

#include "client/kvpool_p2p.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE_BYTES 4096u

/* Makes the dict `errors`: {name: (number, code of the drop-in API, text)}. */
static PyObject *
make_errors(void)
{
    PyObject *errors = PyDict_New();

#define KVPY_ADD(num, name, dropin, text)                                                                              \
    if (errors != NULL) {                                                                                              \
        PyObject *entry = Py_BuildValue("(iis)", num, dropin, text);                                                   \
        if (entry == NULL || PyDict_SetItemString(errors, #name, entry) < 0) Py_CLEAR(errors);                         \
        Py_XDECREF(entry);                                                                                             \
    }
    KVPOOL_ERR_MAP(KVPY_ADD)
#undef KVPY_ADD
    return errors;
}

static bool
add_flags(PyObject *module)
{
    static const struct {
        const char *name;
        long value;
    } flags[] = {
        {"FORCE", KVPOOL_FORCE},
        {"UPSERT", KVPOOL_UPSERT},
        {"PIN_SOFT", KVPOOL_PIN_SOFT},
        {"PIN_HARD", KVPOOL_PIN_HARD},
        {"WAIT", KVPOOL_WAIT},
        {"HEED_PROBES", KVPOOL_HEED_PROBES},
        {"FRESH", KVPOOL_FRESH},
        {"KEEP_HERE", KVPOOL_KEEP_HERE},
        {"ALL_TENANTS", KVPOOL_ALL_TENANTS},
        {"GROUPS", KVPOOL_GROUPS},
        {"PREFETCH", KVPOOL_PREFETCH},
        {"LINEAGES", KVPOOL_LINEAGES},
        {"SOON", KVPOOL_SOON},
        {"REPORT_ALREADY", KVPOOL_REPORT_ALREADY},
        {"KEY_MAX", KVPOOL_KEY_MAX},
        {"BATCH_MAX", KVPOOL_BATCH_MAX},
        {"P2P_READ", KVPOOL_P2P_READ},
        {"P2P_WRITE", KVPOOL_P2P_WRITE},
        {"P2P_TRACEABLE", KVPOOL_P2P_TRACEABLE},
        {"EPOCH", KVPOOL_EPOCH},
        {"PLACES", KVPOOL_PLACES},
        {"PRESENT", KVPOOL_PRESENT},
        {"ON_SSD", KVPOOL_ON_SSD},
        {"ON_HOST", KVPOOL_ON_HOST},
    };

    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (PyModule_AddIntConstant(module, flags[i].name, flags[i].value) < 0) return false;
    return true;
}

/* memory_of(object, is_written) -> (address, length). The caller keeps the object alive while the address is in use. */
static PyObject *
memory_of(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *obj, *pair;
    kvpy_mem_t mem;
    int is_written;

    if (!PyArg_ParseTuple(args, "Op", &obj, &is_written) || !kvpy_mem_init(&mem, obj, is_written != 0)) return NULL;
    pair = Py_BuildValue("(KK)", (unsigned long long)(uintptr_t)mem.addr, (unsigned long long)mem.len);
    kvpy_mem_fini(&mem);
    return pair;
}

/* Copies bytes. More than a page is copied without the interpreter's lock, so that other threads run meanwhile. */
static void
copy_bytes(void *dst, const void *src, size_t len)
{
    if (len <= PAGE_BYTES) {
        memmove(dst, src, len);
        return;
    }
    Py_BEGIN_ALLOW_THREADS
        memmove(dst, src, len);
    Py_END_ALLOW_THREADS
}

/* Copies within this process by a system call, which returns an error for unmapped or protected memory instead of
 * crashing the process. If the system forbids the call (seccomp), the memory is copied directly. Returns false if not
 * all bytes could be copied. */
static bool
copy_checked(void *dst, const void *src, size_t len, bool is_read)
{
    char *local = is_read ? dst : (char *)(uintptr_t)src;
    char *other = is_read ? (char *)(uintptr_t)src : dst;
    size_t done = 0;
    ssize_t n = 1;

    Py_BEGIN_ALLOW_THREADS
        while (done < len && n > 0) {
            struct iovec here = {local + done, len - done}, there = {other + done, len - done};

            n = is_read ? process_vm_readv(getpid(), &here, 1, &there, 1, 0)
                        : process_vm_writev(getpid(), &here, 1, &there, 1, 0);
            if (n > 0) done += (size_t)n;
        }
        if (n < 0 && (errno == ENOSYS || errno == EPERM)) {
            memmove((char *)dst + done, (const char *)src + done, len - done);
            done = len;
        }
    Py_END_ALLOW_THREADS
    return done == len;
}

/* Gets the bytes of a source: the UTF-8 of a str, or the memory of an object. */
static bool
take_source(kvpy_mem_t *mem, PyObject *obj)
{
    kvpool_key_t text;

    if (!PyUnicode_Check(obj)) return kvpy_mem_init(mem, obj, false);
    if (!kvpy_key(obj, &text)) return false;
    *mem = (kvpy_mem_t){.addr = (void *)text.data, .len = text.len};
    return true;
}

/* write_bytes(address, str or object with memory, length, is_checked=False) -> True if the source has at least
 * `length` bytes of host memory; only then `length` bytes are copied to the address. With is_checked the result is
 * False also if some memory at the address is not writable. */
static PyObject *
write_bytes(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *source;
    uint64_t addr, len;
    int is_checked = 0;
    kvpy_mem_t mem;
    bool is_well;

    if (!PyArg_ParseTuple(args, "O&OO&|p", kvpy_u64, &addr, &source, kvpy_u64, &len, &is_checked) ||
        !take_source(&mem, source))
        return NULL;
    is_well = len <= mem.len && !mem.is_device;
    if (is_well && is_checked)
        is_well = copy_checked((void *)(uintptr_t)addr, mem.addr, (size_t)len, false);
    else if (is_well && len > 0)
        copy_bytes((void *)(uintptr_t)addr, mem.addr, (size_t)len);
    kvpy_mem_fini(&mem);
    return PyBool_FromLong(is_well);
}

/* read_bytes(address, length, is_checked=False) -> bytes. With is_checked the result is None if some of the memory is
 * not readable. */
static PyObject *
read_bytes(PyObject *Py_UNUSED(module), PyObject *args)
{
    uint64_t addr, len;
    int is_checked = 0;
    PyObject *bytes;

    if (!PyArg_ParseTuple(args, "O&O&|p", kvpy_u64, &addr, kvpy_u64, &len, &is_checked)) return NULL;
    if (len > PY_SSIZE_T_MAX) return PyErr_NoMemory();
    bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)len);
    if (bytes == NULL || len == 0) return bytes;
    if (!is_checked) {
        copy_bytes(PyBytes_AsString(bytes), (const void *)(uintptr_t)addr, (size_t)len);
    } else if (!copy_checked(PyBytes_AsString(bytes), (const void *)(uintptr_t)addr, (size_t)len, true)) {
        Py_DECREF(bytes);
        Py_RETURN_NONE;
    }
    return bytes;
}

/* ---- types */
PyTypeObject *kvpy_pool_type, *kvpy_view_type;

void
kvpy_free_object(void *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    freefunc free_memory = (freefunc)PyType_GetSlot(type, Py_tp_free);

    free_memory(self);
    Py_DECREF(type);
}

/* Makes the types and adds them to the module, except View, which programs get as a result only. */
static bool
add_types(PyObject *module)
{
    static const struct {
        const char *name; /* NULL = not in the module */
        PyType_Spec *spec;
        PyTypeObject **type; /* variable that gets the type with a reference, which is never released; NULL = none */
    } types[] = {
        {"Pool", &kvpy_pool_spec, &kvpy_pool_type},
        {NULL, &kvpy_view_spec, &kvpy_view_type},
        {"Peer", &kvpy_peer_spec, NULL},
        {"Span", &kvpy_span_spec, NULL},
        {"Asker", &kvpy_asker_spec, NULL},
        {"Job", &kvpy_job_spec, NULL},
    };

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        PyObject *type = PyType_FromSpec(types[i].spec);

        if (type == NULL) return false;
        if (types[i].name != NULL && PyObject_SetAttrString(module, types[i].name, type) < 0) {
            Py_DECREF(type);
            return false;
        }
        if (types[i].type != NULL)
            *types[i].type = (PyTypeObject *)type;
        else
            Py_DECREF(type);
    }
    return true;
}

static PyMethodDef functions[] = {
    {"memory_of", memory_of, METH_VARARGS, NULL},
    {"write_bytes", write_bytes, METH_VARARGS, NULL},
    {"read_bytes", read_bytes, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_kvpool",    .m_doc = "libkvpool for the packages kvpool and mooncake.",
    .m_size = -1,          .m_methods = functions,
};

PyMODINIT_FUNC PyInit__kvpool(void); /* Python finds this init function by its name, so no header declares it */

PyMODINIT_FUNC
PyInit__kvpool(void)
{
    PyObject *module, *errors;

    module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    errors = make_errors();
    if (errors == NULL || PyModule_AddObject(module, "errors", errors) < 0 || !add_types(module) ||
        !add_flags(module) || PyModule_AddStringConstant(module, "version", kvpool_version()) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
