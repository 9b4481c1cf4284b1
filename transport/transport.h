/* SPDX-License-Identifier: Apache-2.0
 * transport.h - moves bytes between registered local memory and a peer's exported memory: one-sided transfers, not a
 * byte stream. The control plane keeps its framed socket (net/framed.h). This header is the contract of every
 * transport and names none of them; transport/all/registry.h lists them.
 *
 * Objects: a transport instance (tp) holds registered memory (mr) and opened remote memory (rseg). Any thread may use
 * these. An endpoint (ep) is a path to one peer; exactly one thread uses it at a time, and this thread drives it: it
 * submits, polls and sleeps on its event fd. Callers with several threads check endpoints out of a pool. */
#ifndef KVP_TRANSPORT_TRANSPORT_H
#define KVP_TRANSPORT_TRANSPORT_H

#include "transport/gpu/device.h"
#include "common/base.h"
#include "common/idset.h"
#include "common/list.h"
#include "common/metrics.h"
#include "common/parse.h"
#include "proto/segfmt.h"

/* Capabilities and limitations of a transport: the bits of kvp_transport_ops.caps. */
#define KVP_TP_SAME_HOST 0x01u /* the transport works only between processes of one host */
#define KVP_TP_DEVICE_MEM 0x02u /* the transport can move device (GPU) memory that was lent to it (KVP_XFER_DEVICE) */
/* the transport checks the guard word of a GUARDED WRITE, and refuses a PUBLISH that kvp_word_may_become forbids */
#define KVP_TP_GUARDS 0x04u
#define KVP_TP_SYNC 0x08u /* submit completes every transfer before it returns */
/* the network does not protect the bytes, so a reader must verify each READ by the object's checksum */
#define KVP_TP_VERIFY_SUM 0x10u
/* the transport listens on a port of its own at the node's address, and takes no accepted sockets */
#define KVP_TP_OWN_PORT 0x40u
/* after a quiesce a peer's writes may still land in our memory, until peer_cut or peer_fence ends them */
#define KVP_TP_LATE_WRITES 0x20u
/* each READ costs a work request, so a reader verifies a small object by its checksum alone, and does not READ the
 * object's descriptor as well */
#define KVP_TP_SUM_ALONE 0x80u
/* mr_reg takes seconds for large memory: call mr_reg from a thread that may block for long */
#define KVP_TP_SLOW_REG 0x100u
/* READs complete one after another in the order of submission, so AFTER_PRIOR makes no READ wait */
#define KVP_TP_READS_IN_ORDER 0x200u

#define KVP_TOKEN_MAX 96u

typedef struct kvp_transport_ops kvp_transport_ops_t;

/* The common first part of the structs of every transport. kvp_tp_create, kvp_mr_create, kvp_rseg_create and
 * kvp_ep_create allocate the whole struct, whose size is in the transport's table. */
typedef struct {
    const kvp_transport_ops_t *ops;
    uint64_t mr_max_bytes; /* the largest memory that one registration may have, in bytes; 0 = no limit. Set by init */
} kvp_tp_t;

typedef struct {
    kvp_tp_t *tp;
    void *addr;
    size_t len;
} kvp_mr_t;

typedef struct {
    kvp_tp_t *tp;
    uint64_t len; /* the length of the opened remote memory in bytes */
} kvp_rseg_t;

/* The cost of the transfers of one endpoint. Stays zero for a transport that does not count. */
typedef struct {
    uint64_t requests; /* the number of work requests posted to the network adapters */
    uint64_t doorbells;
    uint64_t completions; /* the number of completions that adapters were asked to report */
    uint64_t system_calls; /* the system calls that kvpool made; the system calls of the network stack are not known */
    uint64_t copied_bytes; /* the bytes that the processor copied because the local memory was not registered */
} kvp_ep_costs_t;

/* a loan: local memory that the caller registered in advance with a transport, by its slot lend */
typedef struct kvp_loan kvp_loan_t;

typedef struct {
    kvp_tp_t *tp;
    uint64_t incarnation; /* the incarnation that was sent to the peer; 0 = none */
    kvp_ep_costs_t costs;
    uint32_t spin_ns; /* how long a caller should poll for completions before it sleeps; 0 = sleep at once */
    bool needs_sums; /* a READ of this endpoint is valid only if its checksum is right, as with KVP_TP_VERIFY_SUM */
    /* The data bytes sent and received so far, if the transport works in the background. The peer counts as silent
     * while neither number grows. */
    uint64_t sent_bytes;
    uint64_t received_bytes;
} kvp_ep_t;

typedef struct {
    void *addr;
    size_t len;
    int fd; /* the memfd that backs the memory, for transports that share memory by descriptor; -1 = private memory */
} kvp_mem_t;

typedef enum {
    KVP_ACCESS_READ = 1,
    KVP_ACCESS_WRITE = 2, /* a writer's access, which includes read access */
} kvp_access_t;

/* A token: the bytes with which a peer opens exported memory. fd is -1, or a descriptor that is sent with the token
 * (SCM_RIGHTS). The caller of mr_export closes the fd that mr_export returned. rseg_open borrows the caller's fd, and
 * duplicates the fd if needed. */
typedef struct {
    uint8_t len;
    uint8_t bytes[KVP_TOKEN_MAX];
    int fd;
} kvp_token_t;

/* The requests of peers that a serving side answered. One request may have many operations. */
typedef struct {
    kvp_histogram_t read_ns, write_ns; /* times from a request's first operation to the end of its answer */
    _Atomic uint64_t read_bytes, written_bytes;
} kvp_served_t;

typedef struct {
    uint64_t incarnation; /* the client's incarnation, which is sent to peers; 0 on an instance that only serves */
    /* True: each endpoint sends a random incarnation of its own (kvp_ep_t) instead of the instance's, so that each can
     * be cut alone (peer_cut). A transport without peer_cut ignores the flag. */
    bool is_incarnation_drawn;
    uint8_t pool_id[16];
    uint32_t lanes; /* the number of serving threads that will call serve(); 0 = the instance does not serve */
    uint32_t max_conns; /* the most connections that the serving side accepts; 0 = 4096 */
    /* Serving side: connections of a peer are refused before peer_came and after peer_left. Used only by transports
     * with KVP_TP_OWN_PORT. */
    bool needs_attachment;
    /* software adapters are trusted: kvp_ep_t.needs_sums stays false for an endpoint on a software adapter */
    bool trusts_adapters;
    const void *own; /* the options of this one transport, of the type that its table.h declares; NULL = defaults */
    /* Counts of the requests of peers; borrowed for the life of the instance; NULL = not wanted. For shm and rdma
     * nothing is counted, because there the peers move the bytes themselves. */
    kvp_served_t *served;
} kvp_tp_conf_t;

typedef enum {
    KVP_XFER_READ = 1, /* copies from the peer's memory into the local pieces (iov) */
    KVP_XFER_WRITE = 2, /* copies from the local pieces (iov) into the peer's memory */
    KVP_XFER_PUBLISH = 3, /* stores `word` at roffset if kvp_word_may_become allows the change, else ends with STALE */
} kvp_xfer_kind_t;

/* The flags of a transfer. Three groups of transfers stay unordered among themselves even with AFTER_PRIOR: GUARDED
 * WRITEs to one extent (their ranges do not overlap), READs, and PUBLISHes. A READ of at most 128 bytes, aligned to 8
 * in the peer's memory, is loaded word by word. Its later words are consistent with its first word, so a descriptor
 * line is never torn. With AFTER_PRIOR such a READ is loaded after the earlier transfers took effect. */
/* starts only after every transfer submitted earlier on this endpoint has taken effect */
#define KVP_XFER_AFTER_PRIOR 0x01u
#define KVP_XFER_SUM 0x02u /* the transport computes the checksum of the moved bytes, in order, into kvp_xfer_t.sum */
/* WRITE: the bytes land only while the guard's word in the peer's memory equals guard_word (with KVP_TP_GUARDS) */
#define KVP_XFER_GUARDED 0x04u
/* the transfer's local memory is lent to the transport (see lend), and stays lent until the transfer completes */
#define KVP_XFER_LENT 0x08u
/* the local memory is device memory: the processor must not access it, so KVP_XFER_SUM is not allowed */
#define KVP_XFER_DEVICE 0x10u
/* READ with KVP_XFER_SUM: the peer also sends its checksum of the bytes (with KVP_TP_VERIFY_SUM) */
#define KVP_XFER_PEER_SUM 0x20u

typedef struct kvp_iov {
    void *addr;
    size_t len;
} kvp_iov_t;

/* One transfer: a READ, WRITE or PUBLISH. The caller fills in the fields up to arg, and keeps the struct, the iov
 * array and the memory alive until done is called. From submit until done the transport owns the struct. done is
 * called exactly once for each accepted transfer, also after close, cancel and peer death, in the thread that polls
 * or submits. done may not submit transfers and may not close the endpoint. */
typedef struct kvp_xfer {
    kvp_xfer_kind_t kind;
    uint32_t flags;
    kvp_rseg_t *rseg;
    uint64_t roffset;
    const kvp_iov_t *iov;
    uint32_t iov_n;
    uint64_t len; /* the sum of the iov lengths in bytes; PUBLISH: 8 */
    uint64_t word; /* PUBLISH: the word to store. PEER_SUM: the peer's checksum, set at completion */
    kvp_rseg_t *guard_rseg;
    uint64_t guard_off;
    uint64_t guard_word;
    /* a time of CLOCK_MONOTONIC: a transport that copies ends the transfer at this time with DEADLINE; 0 = never */
    uint64_t deadline_ns;
    /* WRITE, PUBLISH: a time (CLOCK_MONOTONIC) at or before the request to the master for the space in the peer's
     * memory. A transport with KVP_TP_LATE_WRITES uses only connections that were established before, else the status
     * is EAGAIN. 0 = no other client can get the space. */
    uint64_t granted_ns;
    void (*done)(struct kvp_xfer *xfer);
    void *arg;

    /* The outcome, set before done is called. STALE: the guard or the PUBLISH was refused. INVALID: ill-formed, out of
     * range, or a write with a reader's token. PROTO: the peer's answer was malformed, and the endpoint is broken.
     * CORRUPT (PEER_SUM): the received bytes do not have the peer's checksum. NOTSUP (DEVICE): not all of the memory is
     * registered. NOT_REGISTERED (DEVICE): the memory was freed. EAGAIN: the space was granted before the connection
     * was made (granted_ns); nothing was sent, and the caller asks for other space. Others: OK, DEADLINE, NO_SEGMENT,
     * DISCONNECTED, CANCELLED. */
    kvp_err_t status;
    uint64_t sum; /* the checksum of the moved bytes; valid with KVP_XFER_SUM and status OK */
    kvp_list_t link; /* the transport's list link while it owns the transfer */
    uint64_t left; /* the transport's count of bytes not yet completed, while it owns the transfer */
} kvp_xfer_t;

typedef void (*kvp_ep_done_fn)(void *arg, kvp_err_t err);
typedef void (*kvp_fence_fn)(void *arg, uint64_t incarnation);
typedef void (*kvp_quiesce_fn)(void *arg);

/* The table of functions of a transport. A transport may leave slots empty, except slots marked mandatory:
 * kvp_transport_find returns a copy whose empty slots have default functions, so that every slot can be called. The
 * comment of each slot describes its default as what "an empty slot" does. */
struct kvp_transport_ops {
    const char *name;
    uint32_t caps; /* the transport's capabilities: a set of KVP_TP_* bits */
    /* the sizes of the transport's own structs, each of which begins with the common part (kvp_tp_t and so on) */
    size_t tp_size, mr_size, ep_size, rseg_size;

    /* probe returns OK if this machine has the transport's requirements, else NOTSUP, with the reason in why_out
     * (static text). The first call may take a while; the devices that it opens stay open for the life of the
     * process. Any thread. An empty probe slot returns OK. */
    kvp_err_t (*probe)(const char **why_out);

    /* init (mandatory) sets up an instance, and may fail half way. fini (mandatory) tears down an instance in any
     * partial state, and ends every serving connection. Before fini the caller destroys all mrs, rsegs and eps of the
     * instance, and no thread is in serve. */
    kvp_err_t (*init)(kvp_tp_t *tp, const kvp_tp_conf_t *conf);
    void (*fini)(kvp_tp_t *tp);

    /* The connections of the serving side.
     * - listen binds a port (0 = any), returns the bound address, and makes the instance accept connections. An empty
     *   slot returns NOTSUP. A transport without a network may give the host another meaning.
     * - adopt hands an accepted socket to the instance. The first frame (DATA_HELLO) of the socket is still unread.
     *   adopt takes the descriptor, also on failure. An empty slot closes the descriptor and returns NOTSUP.
     * - serve runs one lane (a serving thread and its connections): it handles the ready events, waits up to timeout_ms
     *   (-1 = without limit) and returns. One thread calls serve for each lane. An empty slot returns NOTSUP.
     * - wake makes every running serve return soon. Any thread. An empty wake slot does nothing. */
    kvp_err_t (*listen)(kvp_tp_t *tp, const kvp_hostport_t *at, kvp_hostport_t *bound_out);
    kvp_err_t (*adopt)(kvp_tp_t *tp, int fd);
    kvp_err_t (*serve)(kvp_tp_t *tp, uint32_t lane, int timeout_ms);
    void (*wake)(kvp_tp_t *tp);

    /* The serving side shuts peers out. A peer is named by the incarnation that it sent. Any thread may call.
     * - peer_fence refuses the peers `dead`, and every incarnation below live_min, from now on. It calls done once no
     *   byte from these peers can land any more by this transport, in the call itself or in a serving thread (lane).
     *   Answers to these peers that are being sent may be cut. A transport that cannot see a peer's stores (shared
     *   memory that the peer mapped) never calls done: the caller proves the same by the death of the process. An empty
     *   slot calls done at once, right for a transport to which no peer writes.
     * - quiesce calls done once every copy or send of the serving side that had begun before the call is over: in the
     *   call itself, in a serving thread (lane) or in fini. A send that delays done by more than 1 s loses its
     *   connection. An empty slot calls done at once, right for a transport whose serving side copies nothing.
     * - peer_cut ends every connection that this peer has now. After the return no byte sent on these connections
     *   lands; the peer may connect again. An empty slot does nothing, right where a quiesce has the same effect.
     * - peer_came records that the peer is attached (see needs_attachment). An empty slot does nothing.
     * - peer_left records that the peer is detached. Its connections end as by peer_cut, and the memory of its keys is
     *   deregistered in the background. The peer may attach again. An empty slot does nothing, right for a transport
     *   that keeps no state for each peer. */
    void (*peer_fence)(kvp_tp_t *tp, kvp_idrange_t dead, uint64_t live_min, kvp_fence_fn done, void *arg);
    void (*quiesce)(kvp_tp_t *tp, kvp_quiesce_fn done, void *arg);
    void (*peer_cut)(kvp_tp_t *tp, uint64_t incarnation);
    void (*peer_came)(kvp_tp_t *tp, uint64_t incarnation);
    void (*peer_left)(kvp_tp_t *tp, uint64_t incarnation);

    /* Memory that the instance serves to peers. Registration is independent of connections. Any thread.
     * - mr_reg (mandatory) registers mem; the descriptor of mem is borrowed while the mr lives. LIMIT: larger than
     *   mr_max_bytes.
     * - mr_dereg (mandatory) returns once the serving side no longer touches the memory.
     * - mr_grant makes the registrations that this peer's write keys need. With KVP_TP_SLOW_REG it takes as long as
     *   mr_reg. Its errors are those of mr_reg, and FENCED: the peer is fenced, or was fenced or left during the
     *   call; EAGAIN: another thread runs mr_grant for this peer. An empty slot returns OK, right where write keys
     *   need nothing.
     * - mr_export returns the token with which a peer opens the memory. Tokens for reading and for writing differ,
     *   and a write token may be valid for this peer alone. FENCED: the peer is fenced. EAGAIN: mr_grant must be
     *   called first. SYS: no descriptor is left (errno). An empty slot returns NOTSUP. */
    kvp_err_t (*mr_reg)(kvp_tp_t *tp, const kvp_mem_t *mem, kvp_mr_t *mr);
    void (*mr_dereg)(kvp_mr_t *mr);
    kvp_err_t (*mr_grant)(kvp_mr_t *mr, uint64_t incarnation);
    kvp_err_t (*mr_export)(const kvp_mr_t *mr, kvp_access_t access, uint64_t incarnation, kvp_token_t *token_out);

    /* Local memory in frequent use, registered in advance (a loan), so that transfers need no copy. Any thread.
     * - lend registers memory for the process, not for an instance, because registration takes long and sessions come
     *   and go. For large memory lend returns before all of the memory is registered. Host memory that is not yet
     *   registered, or cannot be, is moved with a copy. Loans of the same memory may overlap. own has the transport's
     *   options as in kvp_tp_conf_t. device is NULL, or the device of the memory (with KVP_TP_DEVICE_MEM). Device
     *   memory cannot be moved with a copy: OK means that adapters reach all of the memory, NOTSUP that they do not.
     *   An empty slot returns NOTSUP.
     * - unlend ends one loan, and returns once the loan no longer holds the memory. No transfer with the memory may
     *   be under way. An empty slot does nothing. */
    kvp_err_t (*lend)(const void *own, void *addr, size_t len, const kvp_devmem_t *device, kvp_loan_t **loan_out);
    void (*unlend)(kvp_loan_t *loan);

    /* rseg_open (mandatory) opens a peer's memory once, for many transfers; len is the length that the peer stated.
     * rseg_close (mandatory) closes the memory. Any thread. */
    kvp_err_t (*rseg_open)(kvp_tp_t *tp, const kvp_token_t *token, uint64_t len, kvp_access_t access, kvp_rseg_t *rseg);
    void (*rseg_close)(kvp_rseg_t *rseg);

    /* Endpoints. The slots from here on, except tend, are called by the one thread that uses the endpoint.
     * - ep_connect (mandatory) begins to connect, and resolves a host name in the call. done is called once: in
     *   ep_connect, in ep_poll, or in ep_close (with CANCELLED), but not if ep_connect returns an error. Errors caused
     *   by the peer: UNREACHABLE, DISCONNECTED, VERSION, PROTO, FENCED, BUSY, LIMIT, NOTSUP.
     * - ep_close (mandatory) never blocks. Every transfer that the endpoint still owns completes with CANCELLED. After
     *   the return no part of the endpoint touches local memory. */
    kvp_err_t (*ep_connect)(kvp_tp_t *tp, const kvp_hostport_t *to, kvp_ep_t *ep, kvp_ep_done_fn done, void *arg);
    void (*ep_close)(kvp_ep_t *ep);

    /* Data.
     * - submit (mandatory) queues n transfers. *n_out < n is back-pressure: the caller keeps the other transfers, polls
     *   and submits them again. An error means a broken endpoint; transfers accepted before the error still complete.
     *   submit makes no malloc and no system call for each transfer.
     * - drain waits for completions. After OK the endpoint touches no local memory. DEADLINE: not all transfers had
     *   completed at deadline_ns, and the caller closes the endpoint. An empty drain slot returns OK. */
    kvp_err_t (*submit)(kvp_ep_t *ep, kvp_xfer_t *const *xfers, size_t n, size_t *n_out);
    kvp_err_t (*drain)(kvp_ep_t *ep, uint64_t deadline_ns);

    /* Progress.
     * - ep_poll calls done for completed transfers without blocking, and returns their number. An empty slot returns 0.
     * - ep_event_fd returns the descriptor on which the caller sleeps. ep_arm is called before each sleep, and returns
     *   the poll(2) events to wait for. Empty slots return -1 and 0, right where submit is synchronous.
     * - ep_is_broken returns whether the endpoint accepts no more transfers. An empty slot returns false.
     * - ep_is_stale is called for an endpoint without transfers. It returns true if the caller should close the
     *   endpoint and attach the peer again, because a device of the endpoint was removed or the peer's keys have
     *   changed. An empty slot returns false. */
    size_t (*ep_poll)(kvp_ep_t *ep);
    int (*ep_event_fd)(kvp_ep_t *ep);
    short (*ep_arm)(kvp_ep_t *ep);
    bool (*ep_is_broken)(const kvp_ep_t *ep);
    bool (*ep_is_stale)(const kvp_ep_t *ep);

    /* tend does the periodic work of an instance: it handles adapters that were removed or returned. Called about once
     * a second, by any thread; does not block. An empty tend slot does nothing. */
    void (*tend)(kvp_tp_t *tp);
};

/* kvp_tp_create, kvp_mr_create, kvp_rseg_create and kvp_ep_create allocate the transport's struct and call init,
 * mr_reg, rseg_open or ep_connect. They return the error of this call, or NOMEM. The destroy functions call fini,
 * mr_dereg, rseg_close or ep_close, and free the struct; NULL is legal. */
kvp_err_t kvp_tp_create(const kvp_transport_ops_t *ops, const kvp_tp_conf_t *conf, kvp_tp_t **tp_out) KVP_MUST_USE;
void kvp_tp_destroy(kvp_tp_t *tp);
kvp_err_t kvp_mr_create(kvp_tp_t *tp, const kvp_mem_t *mem, kvp_mr_t **mr_out) KVP_MUST_USE;
void kvp_mr_destroy(kvp_mr_t *mr);
kvp_err_t kvp_rseg_create(kvp_tp_t *tp, const kvp_token_t *token, uint64_t len, kvp_access_t access,
                          kvp_rseg_t **rseg_out) KVP_MUST_USE;
void kvp_rseg_destroy(kvp_rseg_t *rseg);

/* kvp_rseg_has returns whether the len bytes at offset off lie within the opened remote memory. */
static inline bool
kvp_rseg_has(const kvp_rseg_t *rseg, uint64_t off, uint64_t len)
{
    return off <= rseg->len && len <= rseg->len - off;
}

kvp_err_t kvp_ep_create(kvp_tp_t *tp, const kvp_hostport_t *to, kvp_ep_done_fn done, void *arg, kvp_ep_t **ep_out)
    KVP_MUST_USE;
void kvp_ep_destroy(kvp_ep_t *ep);

#endif
