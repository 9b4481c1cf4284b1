/* SPDX-License-Identifier: Apache-2.0
 * transport.h - moves bytes between registered local memory and a peer's exported memory: one-sided
 * transfers, not a byte stream. The control plane keeps its framed socket (net/framed.h). This
 * header is the contract of every transport and names none of them; transport/all/registry.h lists
 * them.
 *
 * Objects: a transport instance (tp) holds registered memory (mr) and opened remote memory (rseg).
 * Any thread may use these. An endpoint (ep) is a path to one peer; exactly one thread uses it at a
 * time, and this thread drives it: it submits, polls and sleeps on its event fd. Callers with
 * several threads check endpoints out of a pool. */
#ifndef KVP_TRANSPORT_TRANSPORT_H
#define KVP_TRANSPORT_TRANSPORT_H

#include "transport/gpu/device.h"
#include "common/base.h"
#include "common/idset.h"
#include "common/list.h"
#include "common/parse.h"
#include "proto/segfmt.h"

/* What a transport is and can do (kvp_transport_ops.caps). */
#define KVP_TP_SAME_HOST 0x01u /* works only between processes of one host */
#define KVP_TP_DEVICE_MEM 0x02u /* moves lent device memory (KVP_XFER_DEVICE) */
#define KVP_TP_GUARDS 0x04u /* the serving side enforces guards and kvp_word_may_become */
#define KVP_TP_SYNC 0x08u /* submit completes every transfer before it returns */
#define KVP_TP_VERIFY_SUM 0x10u /* bytes travel unprotected: the reader must verify a read by its sum */
#define KVP_TP_OWN_PORT 0x40u /* listens by itself, at the node's address; takes no accepted sockets */
#define KVP_TP_LATE_WRITES 0x20u /* what a peer wrote may land after a quiesce, until the peer is cut or fenced */
#define KVP_TP_SUM_ALONE 0x80u /* a read costs as much as its requests: small reads are verified by their sum alone */
#define KVP_TP_SLOW_REG 0x100u /* mr_reg is slow for large memory: call it from threads that may take long */

#define KVP_TOKEN_MAX 96u

typedef struct kvp_transport_ops kvp_transport_ops_t;

/* The typed bases. Each comes first in the transport's own struct; kvp_tp_create and its like
 * allocate by the table's sizes. */
typedef struct {
    const kvp_transport_ops_t *ops;
    uint64_t mr_max_bytes; /* of one registration; 0 = any. Set by init */
} kvp_tp_t;

typedef struct {
    kvp_tp_t *tp;
    void *addr;
    size_t len;
} kvp_mr_t;

typedef struct {
    kvp_tp_t *tp;
    uint64_t len; /* addressable bytes */
} kvp_rseg_t;

/* The cost of moving data, for a transport that counts it. */
typedef struct {
    uint64_t requests; /* work requests */
    uint64_t doorbells;
    uint64_t completions; /* asked for */
    uint64_t system_calls; /* of ours; those of the stack below are not known */
    uint64_t copied_bytes; /* by the processor, since the memory was not registered */
} kvp_ep_costs_t;

typedef struct kvp_loan kvp_loan_t; /* local memory that was lent to a transport (lend) */

typedef struct {
    kvp_tp_t *tp;
    uint64_t incarnation; /* the incarnation sent to the peer; 0 = none */
    kvp_ep_costs_t costs;
    uint32_t spin_ns; /* polling before sleeping pays up to this time */
    bool needs_sums; /* its reads count only where their sums are right, as if the caps had KVP_TP_VERIFY_SUM */
    /* Of a transport that works in the background, of its data only: a peer that takes and gives nothing is silent. */
    uint64_t sent_bytes;
    uint64_t received_bytes;
} kvp_ep_t;

typedef struct {
    void *addr;
    size_t len;
    int fd; /* memfd of the memory, for transports that share memory by descriptor; -1 = private memory */
} kvp_mem_t;

typedef enum {
    KVP_ACCESS_READ = 1,
    KVP_ACCESS_WRITE = 2, /* and read */
} kvp_access_t;

/* The data with which a peer opens exported memory. fd is -1 or a descriptor that travels beside
 * the bytes (SCM_RIGHTS). The caller closes the fd of mr_export; rseg_open borrows the caller's,
 * and duplicates it if needed. */
typedef struct {
    uint8_t len;
    uint8_t bytes[KVP_TOKEN_MAX];
    int fd;
} kvp_token_t;

typedef struct {
    uint64_t incarnation; /* of this client, sent to peers; 0 on a serving-only instance */
    /* Each endpoint draws and sends an incarnation of its own instead (kvp_ep_t), so that it can be
     * cut alone. A transport that cuts no peer ignores the flag. */
    bool is_incarnation_drawn;
    uint8_t pool_id[16];
    uint32_t lanes; /* serving threads that will call serve(); 0 = none serve here */
    uint32_t max_conns; /* serving side; 0 = default 4096 */
    bool
        /* serving side: only peers between peer_came and peer_left may connect (with
         * KVP_TP_OWN_PORT) */
        needs_attachment;
    bool trusts_adapters; /* an endpoint needs no sums on account of its adapter (needs_sums) */
    const void *own; /* options of this transport alone, of the type in its table.h; NULL = none */
} kvp_tp_conf_t;

typedef enum {
    KVP_XFER_READ = 1, /* peer's memory -> iov */
    KVP_XFER_WRITE = 2, /* iov -> peer's memory */
    KVP_XFER_PUBLISH = 3, /* store word at roffset by kvp_word_may_become; STALE if it may not */
} kvp_xfer_kind_t;

/* AFTER_PRIOR orders nothing among GUARDED WRITEs to one extent (they lie apart), among READs, or
 * among PUBLISHes. A READ of at most 128 bytes, aligned to 8 on the peer's side, is loaded word by
 * word, and its other words belong to its first word: a descriptor line is never torn. Its loads
 * come after those of AFTER_PRIOR's prior transfers. */
#define KVP_XFER_AFTER_PRIOR 0x01u /* not before every transfer submitted earlier on this endpoint has taken effect */
#define KVP_XFER_SUM 0x02u /* compute sum over the bytes moved, in order */
#define KVP_XFER_GUARDED 0x04u /* WRITE: lands only while the guard's word has that value (where KVP_TP_GUARDS) */
#define KVP_XFER_LENT 0x08u /* its local memory was lent (see lend), and stays so until the transfer is over */
#define KVP_XFER_DEVICE 0x10u /* the local memory is a device's: no processor touches it, so there is no SUM */
#define KVP_XFER_PEER_SUM 0x20u /* READ with SUM: the peer also sends its sum (with KVP_TP_VERIFY_SUM) */

typedef struct kvp_iov {
    void *addr;
    size_t len;
} kvp_iov_t;

/* One transfer. The caller fills the first part and keeps it, the iov array and the memory alive until done fires.
 * A submitted transfer is the transport's until then. done runs in the thread that polls or submits, exactly once for
 * each accepted transfer: also on close, cancel and peer death; it may not submit or close. */
typedef struct kvp_xfer {
    kvp_xfer_kind_t kind;
    uint32_t flags;
    kvp_rseg_t *rseg;
    uint64_t roffset;
    const kvp_iov_t *iov;
    uint32_t iov_n;
    uint64_t len; /* sum of the iov lengths; PUBLISH: 8 */
    uint64_t word; /* PUBLISH: the word to store; PEER_SUM: the peer's sum, after completion */
    kvp_rseg_t *guard_rseg;
    uint64_t guard_off;
    uint64_t guard_word;
    uint64_t deadline_ns; /* CLOCK_MONOTONIC, 0 = none: a copying transport stops there with DEADLINE */
    /* WRITE, PUBLISH: the space was requested at or after this time (CLOCK_MONOTONIC). With
     * KVP_TP_LATE_WRITES the transfer uses only connections that stood by then, else EAGAIN. 0 = no
     * other client can get the space. */
    uint64_t granted_ns;
    void (*done)(struct kvp_xfer *xfer);
    void *arg;

    /* set before done: OK, STALE (guard or publish refused), DEADLINE, INVALID (ill-formed, out of
     * range, a reader's token used to write), NO_SEGMENT, DISCONNECTED, CANCELLED, PROTO (the
     * peer's answer was malformed; the endpoint is broken), CORRUPT (PEER_SUM: it is not what
     * arrived), NOTSUP (DEVICE: not all of the memory is registered), NOT_REGISTERED (DEVICE: it is
     * there no more), EAGAIN (the grant is older than the connection: ask for another; nothing was
     * sent) */
    kvp_err_t status;
    uint64_t sum; /* with KVP_XFER_SUM and status OK */
    kvp_list_t link; /* the transport's while it owns the transfer */
    uint64_t left; /* the same: bytes not completed */
} kvp_xfer_t;

typedef void (*kvp_ep_done_fn)(void *arg, kvp_err_t err);
typedef void (*kvp_fence_fn)(void *arg, uint64_t incarnation);
typedef void (*kvp_quiesce_fn)(void *arg);

/* The table. A transport may leave slots empty, except those marked mandatory: kvp_transport_find
 * returns a copy in which every slot can be called. Each slot states the default of an empty slot;
 * without a statement the default returns NOTSUP. */
struct kvp_transport_ops {
    const char *name;
    uint32_t caps; /* KVP_TP_* */
    size_t tp_size, mr_size, ep_size, rseg_size; /* of the transport's own structs, which begin with the bases */

    /* probe returns OK if this machine has the transport's requirements, or NOTSUP and why (static
     * text). The first call may take a while, and keeps for the process the devices that it opened.
     * Any thread. Default: OK. */
    kvp_err_t (*probe)(const char **why_out);

    /* Instance. init (mandatory) may fail half way. fini (mandatory) copes with any partial state,
     * and ends every serving connection; the caller has destroyed all mrs, rsegs and eps before,
     * and no thread is in serve. */
    kvp_err_t (*init)(kvp_tp_t *tp, const kvp_tp_conf_t *conf);
    void (*fini)(kvp_tp_t *tp);

    /* Serving side: connections.
     * - listen binds (port 0 = any), returns the bound address, and makes the instance accept. A
     *   transport without a network may give the host a meaning of its own.
     * - adopt hands in an accepted socket instead, whose first frame (DATA_HELLO) is still unread.
     *   It takes the descriptor, also on failure.
     * - serve runs one lane: it handles the ready events, waits up to timeout_ms (-1 = for ever)
     *   and returns. One thread calls each lane.
     * - wake makes every serve return soon. Any thread. Default: nothing. */
    kvp_err_t (*listen)(kvp_tp_t *tp, const kvp_hostport_t *at, kvp_hostport_t *bound_out);
    kvp_err_t (*adopt)(kvp_tp_t *tp, int fd);
    kvp_err_t (*serve)(kvp_tp_t *tp, uint32_t lane, int timeout_ms);
    void (*wake)(kvp_tp_t *tp);

    /* Serving side: shutting peers out. Any thread. A peer is named by the incarnation that it
     * sent.
     * - peer_fence refuses these peers, and every incarnation below live_min, from now on. It calls
     *   done once no byte from them can land any more by this transport, from the call itself or
     *   from a lane. Answers to the peer that are under way may be cut. A transport that cannot see
     *   a peer's stores (shared memory that the peer mapped) never calls done: the caller proves
     *   the same by the death of the process. Default: done in the call, right where no peer
     *   writes.
     * - quiesce calls done once every copy or send of our own that had begun before the call is
     *   over, from the call itself, a lane or fini. A send that delays it by more than 1 s loses
     *   its connection. Default: done in the call, right where the serving side copies nothing.
     * - peer_cut ends every connection that this peer has now. After its return no byte sent on one
     *   of them lands any more; the peer may connect again. Default: nothing, right where a quiesce
     *   has the same effect.
     * - peer_came records that the peer is attached: see needs_attachment. Default: nothing.
     * - peer_left records that the peer has no attachment any more. Its connections end as by a
     *   cut, and the memory of its keys is released in the background; the peer may return.
     *   Default: nothing, right where no state is kept for a peer. */
    void (*peer_fence)(kvp_tp_t *tp, kvp_idrange_t dead, uint64_t live_min, kvp_fence_fn done, void *arg);
    void (*quiesce)(kvp_tp_t *tp, kvp_quiesce_fn done, void *arg);
    void (*peer_cut)(kvp_tp_t *tp, uint64_t incarnation);
    void (*peer_came)(kvp_tp_t *tp, uint64_t incarnation);
    void (*peer_left)(kvp_tp_t *tp, uint64_t incarnation);

    /* Memory that is served. Registration is independent of connections. Any thread.
     * - mr_reg (mandatory) registers mem, whose descriptor is borrowed while the mr lives; LIMIT:
     *   over mr_max_bytes.
     * - mr_dereg (mandatory) returns once the serving side does not touch the memory any more.
     * - mr_grant makes the requirements of this peer's write keys. With KVP_TP_SLOW_REG it takes as
     *   long as mr_reg. It fails as mr_reg does; FENCED: the peer is fenced, or was fenced or left
     *   meanwhile; EAGAIN: another thread is doing it. Default: OK, right where keys need nothing.
     * - mr_export returns the token with which a peer opens the memory. Read and write tokens
     *   differ, and a write token may be valid for the peer alone. FENCED: the peer is fenced;
     *   EAGAIN: mr_grant has to come first; SYS: no descriptor is left (errno). */
    kvp_err_t (*mr_reg)(kvp_tp_t *tp, const kvp_mem_t *mem, kvp_mr_t *mr);
    void (*mr_dereg)(kvp_mr_t *mr);
    kvp_err_t (*mr_grant)(kvp_mr_t *mr, uint64_t incarnation);
    kvp_err_t (*mr_export)(const kvp_mr_t *mr, kvp_access_t access, uint64_t incarnation, kvp_token_t *token_out);

    /* Local memory in frequent use, registered in advance, so that transfers need no copy. Any
     * thread.
     * - lend registers memory for the process and not for an instance: registration takes long, and
     *   sessions come and go. For large memory lend returns before all of it is registered. Host
     *   memory that is not registered yet, or cannot be, is moved in another way. Loans of the same
     *   memory may overlap. own is as in kvp_tp_conf_t. device is NULL, or the device of the memory
     *   (with KVP_TP_DEVICE_MEM): device memory has no other way, so OK means that all of it can be
     *   reached, and NOTSUP that it cannot.
     * - unlend returns once this loan does not hold the memory; no transfer with it may be under
     *   way. Default: nothing. */
    kvp_err_t (*lend)(const void *own, void *addr, size_t len, const kvp_devmem_t *device, kvp_loan_t **loan_out);
    void (*unlend)(kvp_loan_t *loan);

    /* A peer's memory, opened once and not for each transfer. Any thread. len is the length that
     * the peer stated. Both are mandatory. */
    kvp_err_t (*rseg_open)(kvp_tp_t *tp, const kvp_token_t *token, uint64_t len, kvp_access_t access, kvp_rseg_t *rseg);
    void (*rseg_close)(kvp_rseg_t *rseg);

    /* Endpoints; all slots from here on but tend are called by the one thread that uses the
     * endpoint. ep_connect (mandatory) begins to connect. done fires once: in the call, in ep_poll,
     * or with CANCELLED in ep_close; but not where ep_connect itself fails. UNREACHABLE, VERSION,
     * PROTO, FENCED and BUSY are what the peer's side gives. A name is resolved in the call.
     * ep_close (mandatory) never blocks. Every transfer that the endpoint still owns completes with
     * CANCELLED, and nothing of the endpoint touches local memory after it returns. */
    kvp_err_t (*ep_connect)(kvp_tp_t *tp, const kvp_hostport_t *to, kvp_ep_t *ep, kvp_ep_done_fn done, void *arg);
    void (*ep_close)(kvp_ep_t *ep);

    /* Data.
     * - submit (mandatory) queues n transfers. *n_out < n is back-pressure: the caller keeps the
     *   rest, polls and submits again. An error means a broken endpoint; transfers accepted before
     *   it still complete. No malloc and no system call for each transfer.
     * - drain waits for completions; after OK the endpoint touches no local memory. DEADLINE at
     *   deadline_ns: the caller closes the endpoint. Default: OK. */
    kvp_err_t (*submit)(kvp_ep_t *ep, kvp_xfer_t *const *xfers, size_t n, size_t *n_out);
    kvp_err_t (*drain)(kvp_ep_t *ep, uint64_t deadline_ns);

    /* Progress.
     * - ep_poll runs the done of completed transfers without blocking, and returns their number.
     *   Default: 0.
     * - ep_event_fd is the descriptor to sleep on, and ep_arm, called before each sleep, returns
     *   the poll(2) events to wait for. Default: -1 and 0, right where submit is synchronous.
     * - ep_is_broken: no transfer will be accepted any more. Default: false.
     * - ep_is_stale, for an endpoint without transfers: the endpoint should be closed and the peer
     *   attached again, because a device under it was removed or the peer has other keys by now.
     *   Default: false. */
    size_t (*ep_poll)(kvp_ep_t *ep);
    int (*ep_event_fd)(kvp_ep_t *ep);
    short (*ep_arm)(kvp_ep_t *ep);
    bool (*ep_is_broken)(const kvp_ep_t *ep);
    bool (*ep_is_stale)(const kvp_ep_t *ep);

    /* tend does an instance's periodic work: it notices devices that were removed or returned. Any
     * thread, every second or so; does not block. Default: nothing. */
    void (*tend)(kvp_tp_t *tp);
};

/* Allocating wrappers: create allocates by the table's size and calls init, mr_reg, rseg_open or
 * ep_connect, whose errors it returns, and NOMEM. destroy calls fini, mr_dereg, rseg_close or
 * ep_close and frees; NULL is legal. */
kvp_err_t kvp_tp_create(const kvp_transport_ops_t *ops, const kvp_tp_conf_t *conf, kvp_tp_t **tp_out) KVP_MUST_USE;
void kvp_tp_destroy(kvp_tp_t *tp);
kvp_err_t kvp_mr_create(kvp_tp_t *tp, const kvp_mem_t *mem, kvp_mr_t **mr_out) KVP_MUST_USE;
void kvp_mr_destroy(kvp_mr_t *mr);
kvp_err_t kvp_rseg_create(kvp_tp_t *tp, const kvp_token_t *token, uint64_t len, kvp_access_t access,
                          kvp_rseg_t **rseg_out) KVP_MUST_USE;
void kvp_rseg_destroy(kvp_rseg_t *rseg);

/* kvp_rseg_has returns whether the len bytes at off lie in the memory. */
static inline bool
kvp_rseg_has(const kvp_rseg_t *rseg, uint64_t off, uint64_t len)
{
    return off <= rseg->len && len <= rseg->len - off;
}

kvp_err_t kvp_ep_create(kvp_tp_t *tp, const kvp_hostport_t *to, kvp_ep_done_fn done, void *arg, kvp_ep_t **ep_out)
    KVP_MUST_USE;
void kvp_ep_destroy(kvp_ep_t *ep);

#endif
