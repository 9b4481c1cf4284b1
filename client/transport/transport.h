/* SPDX-License-Identifier: Apache-2.0
 * transport.h - moves bytes between registered local memory and a peer's exported memory: one-sided transfers, not a
 * byte stream. The control plane keeps its framed socket (client/net/framed.h).
 *
 * Objects: a transport instance (tp) holds registered memory (mr) and opened remote memory (rseg), both usable from any
 * thread. An endpoint (ep) is a path to one peer; exactly one thread uses it at a time, and that thread drives it: it
 * submits, polls and sleeps on its event fd. Callers that want several threads check endpoints out of a pool.
 * Unset slots get a KVP_NOTSUP default at registration.
 */
#ifndef KVP_CLIENT_TRANSPORT_TRANSPORT_H
#define KVP_CLIENT_TRANSPORT_TRANSPORT_H

#include "client/transport/gpu/device.h"
#include "client/transport/rdma/verbs/dev.h"
#include "common/base.h"
#include "common/list.h"
#include "common/segfmt.h"

#define KVP_TP_SAME_HOST 0x01u /* only between processes of one host */
#define KVP_TP_DEVICE_MEM 0x02u /* takes device memory that was lent (KVP_XFER_DEVICE) */
#define KVP_TP_GUARDS 0x04u /* enforces guards and kvp_word_may_become on the serving side */
#define KVP_TP_SYNC 0x08u /* submit completes everything before it returns */
#define KVP_TP_VERIFY_SUM 0x10u /* bytes travel unprotected: a read must be verified by its sum */
#define KVP_TP_OWN_PORT 0x40u /* listens for itself, at the same address as the node; takes no accepted sockets */
#define KVP_TP_LATE_WRITES 0x20u /* what a peer wrote may land after a quiesce, until it is cut or fenced */
#define KVP_TP_SUM_ALONE 0x80u /* a read costs what requests it takes: small ones are verified by their sum alone */
#define KVP_TP_SLOW_REG 0x100u /* mr_reg takes the longer the more memory it is: for threads that nobody waits for */

#define KVP_TOKEN_MAX 64u

typedef struct kvp_transport_ops kvp_transport_ops_t;

/* The typed bases. Each comes first in the transport's own struct; the framework allocates by the sizes given. */
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
    uint64_t len; /* bytes that may be addressed */
} kvp_rseg_t;

/* What moving data took, of a transport that counts it. */
typedef struct {
    uint64_t requests; /* work requests */
    uint64_t doorbells;
    uint64_t completions; /* asked for */
    uint64_t system_calls; /* of ours; those of the stack below are not known */
    uint64_t copied_bytes; /* by the processor, since the memory was not registered */
} kvp_ep_costs_t;

typedef struct kvp_loan kvp_loan_t; /* local memory that a transport was told of */

typedef struct {
    kvp_tp_t *tp;
    uint64_t incarnation; /* what the peer is told; 0 = nothing is */
    kvp_ep_costs_t costs;
    uint32_t spin_ns; /* for so long it is worth polling before one sleeps */
    bool
        needs_sums; /* what is read by it counts only where its sum is right, also where the transport's caps do not say so */
    /* Of a transport that works in the background, of its data only: a peer that takes and gives nothing is silent. */
    uint64_t sent_bytes;
    uint64_t received_bytes;
} kvp_ep_t;

typedef struct {
    void *addr;
    size_t len;
    int fd; /* memfd behind it, for transports that share memory by descriptor; -1 = private memory */
} kvp_mem_t;

typedef enum {
    KVP_ACCESS_READ = 1,
    KVP_ACCESS_WRITE = 2, /* and read */
} kvp_access_t;

/* What a peer needs to open exported memory. fd is -1 or a descriptor that travels beside the bytes (SCM_RIGHTS);
 * mr_export gives a borrowed one (valid while the mr lives), rseg_open borrows the caller's and duplicates what it
 * keeps. */
typedef struct {
    uint8_t len;
    uint8_t bytes[KVP_TOKEN_MAX];
    int fd;
} kvp_token_t;

typedef struct {
    char host[64]; /* numeric address or name; for mem: the instance's name */
    uint16_t port;
} kvp_addr_t;

typedef struct {
    uint64_t incarnation; /* of this client, told to peers; 0 on a serving-only instance */
    bool
        is_incarnation_drawn; /* tcp, rdma: each endpoint tells one of its own instead, and can be cut alone (kvp_ep_t) */
    uint8_t pool_id[16];
    uint32_t lanes; /* serving threads that will call serve(); 0 = none serve here */
    uint32_t max_conns; /* serving side; 0 = default 4096 */
    bool trusts_adapters; /* rdma: endpoints need no sums, whatever the adapters are */
    const struct kvp_verbs_ops *verbs; /* rdma: NULL = this machine's */
} kvp_tp_conf_t;

typedef enum {
    KVP_XFER_READ = 1, /* peer's memory -> iov */
    KVP_XFER_WRITE = 2, /* iov -> peer's memory */
    KVP_XFER_PUBLISH = 3, /* store word at roffset by kvp_word_may_become; STALE where it may not */
} kvp_xfer_kind_t;

/* Among themselves AFTER_PRIOR asks for no order of GUARDED WRITEs to one extent, which lie apart, of READs, nor of PUBLISHes.
 * A READ of at most 128 bytes, aligned to 8 on the peer's side, is loaded word by word, and the rest of it belongs to
 * its first word: a descriptor line is never torn. Its loads stay behind those of AFTER_PRIOR's prior transfers. */
#define KVP_XFER_AFTER_PRIOR 0x01u /* not before every transfer submitted earlier on this endpoint has taken effect */
#define KVP_XFER_SUM 0x02u /* compute sum over the bytes moved, in order */
#define KVP_XFER_GUARDED 0x04u /* WRITE: lands only while the guard's word has that value (where KVP_TP_GUARDS) */

#define KVP_XFER_LENT 0x08u /* its local memory was lent (see lend), and stays so until the transfer is over */
#define KVP_XFER_DEVICE                                                                                                \
    0x10u /* that is a device's: no processor touches it, so there is no SUM; NOTSUP: not lent here */
#define KVP_XFER_PEER_SUM                                                                                              \
    0x20u /* READ with SUM: the peer also tells the sum of what it sent (where KVP_TP_VERIFY_SUM) */

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
    uint64_t word; /* PUBLISH: the word to store; PEER_SUM: what the peer told, once that is there */
    kvp_rseg_t *guard_rseg;
    uint64_t guard_off;
    uint64_t guard_word;
    uint64_t deadline_ns; /* CLOCK_MONOTONIC, 0 = none: a copying transport stops there with DEADLINE */
    uint64_t
        granted_ns; /* WRITE, PUBLISH: the space was not asked for before (CLOCK_MONOTONIC). Where KVP_TP_LATE_WRITES it
                            goes over connections that stood by then, and no others: EAGAIN. 0 = nobody else gets the space */
    void (*done)(struct kvp_xfer *xfer);
    void *arg;

    kvp_err_t status; /* set before done: OK, STALE (guard or publish refused), DEADLINE, INVALID (ill-formed, out of
                         range, a reader's token used to write), NO_SEGMENT, DISCONNECTED, CANCELLED, PROTO (the peer's
                         answer was malformed; the endpoint is broken), CORRUPT (PEER_SUM: it is not what arrived), NOTSUP
                         (DEVICE: not all of the memory is registered), NOT_REGISTERED (DEVICE: it is there no more),
                         EAGAIN (the grant is older than the connection: ask for another; nothing was sent) */
    uint64_t sum; /* with KVP_XFER_SUM and status OK */
    kvp_list_t link; /* the transport's while it owns the transfer, */
    uint64_t left; /* and this: bytes that are not over */
} kvp_xfer_t;

typedef void (*kvp_ep_done_fn)(void *arg, kvp_err_t err);
typedef void (*kvp_fence_fn)(void *arg, uint64_t incarnation);
typedef void (*kvp_quiesce_fn)(void *arg);

struct kvp_transport_ops {
    const char *name; /* "tcp", "shm", "rdma", "mem" */
    uint32_t caps;
    size_t tp_size, mr_size, ep_size, rseg_size;

    /* probe tells whether this machine has what the transport needs: OK, or NOTSUP and why (a text that lives for ever). It
     * may take a while the first time, and keeps for the process what took it. */
    kvp_err_t (*probe)(const char **why_out);

    /* init may fail half way; fini copes with any partial state, and ends every serving connection. All mrs, rsegs and
     * eps are gone before fini. */
    kvp_err_t (*init)(kvp_tp_t *tp, const kvp_tp_conf_t *conf);
    void (*fini)(kvp_tp_t *tp);

    /* Serving side. listen binds (port 0 = any) and makes the instance accept; adopt instead hands in an accepted
     * socket whose first frame (DATA_HELLO) is still unread, and takes the descriptor also on failure. serve runs one
     * lane: handles what is ready, waits up to timeout_ms (-1 = for ever), returns; each lane is called by one thread.
     * wake makes every serve return soon; any thread. */
    kvp_err_t (*listen)(kvp_tp_t *tp, const kvp_addr_t *at, kvp_addr_t *bound_out);
    kvp_err_t (*adopt)(kvp_tp_t *tp, int fd);
    kvp_err_t (*serve)(kvp_tp_t *tp, uint32_t lane, int timeout_ms);
    void (*wake)(kvp_tp_t *tp);

    /* peer_fence: done = no byte from that client can land any more by this transport, and none that calls later can
     * connect. Answers that were under way to it may be cut. quiesce: done = every copy or send of our own that had
     * begun before the call is over; a send that delays it by more than 1 s loses its connection. Both from any thread;
     * done may fire in the call or in a lane, and quiesce's in fini. live_min: every incarnation below it is refused
     * from now on. Shared memory cannot tell what a peer that mapped it still stores: its peer_fence never calls done,
     * and the caller proves the same by the death of the process. The default is right where nobody writes.
     * peer_cut ends every connection that this client has now: when it returns, no byte that was sent on one of them lands
     * any more; the client may connect again. The default is right where a quiesce says as much.
     * peer_left: that client has no attachment any more. Its connections are ended as by a cut, and what its keys take is given
     * back, in the background; it may come again. The default is right where nothing is kept for a client. */
    void (*peer_fence)(kvp_tp_t *tp, uint64_t incarnation, uint64_t live_min, kvp_fence_fn done, void *arg);
    void (*quiesce)(kvp_tp_t *tp, kvp_quiesce_fn done, void *arg);
    void (*peer_cut)(kvp_tp_t *tp, uint64_t incarnation);
    void (*peer_left)(kvp_tp_t *tp, uint64_t incarnation);

    /* Memory: registration apart from connections, by any thread (LIMIT: above mr_max_bytes); export by access, read keys and
     * write keys differ, and the latter may be good for that client alone (FENCED: it is). mr_dereg returns once nothing of the serving side touches the memory any more.
     * mr_grant makes what keys to write for that client take, by any thread: where KVP_TP_SLOW_REG as long as mr_reg, and before
     * it has, mr_export gives EAGAIN to writers. It may fail as mr_reg does; FENCED, also where the fence came or the client left meanwhile; EAGAIN:
     * another thread is at it. The default is right where keys take nothing. */
    kvp_err_t (*mr_reg)(kvp_tp_t *tp, const kvp_mem_t *mem, kvp_mr_t *mr);
    void (*mr_dereg)(kvp_mr_t *mr);
    kvp_err_t (*mr_grant)(kvp_mr_t *mr, uint64_t incarnation);
    kvp_err_t (*mr_export)(const kvp_mr_t *mr, kvp_access_t access, uint64_t incarnation, kvp_token_t *token_out);

    /* Local memory that is used often, told ahead, so that transfers need no copy. It belongs to the process, not to an
     * instance: it takes long, and sessions come and go. Where it is much lend returns before it is done; what is not ready, or
     * cannot be had, is moved in another way. unlend, once no transfer with the memory is under way, returns when nothing of this
     * loan holds it. Loans of the same memory may overlap. verbs as in kvp_tp_conf_t.
     * device, where not NULL, is whose memory it is (where KVP_TP_DEVICE_MEM). There is no other way to move that: so OK says
     * that all of it can be reached, and NOTSUP that not all can. */
    kvp_err_t (*lend)(const struct kvp_verbs_ops *verbs, void *addr, size_t len, const kvp_devmem_t *device,
                      kvp_loan_t **loan_out);
    void (*unlend)(kvp_loan_t *loan);

    /* Peer's memory, opened once, not per transfer. len is what the peer said it holds. */
    kvp_err_t (*rseg_open)(kvp_tp_t *tp, const kvp_token_t *token, uint64_t len, kvp_access_t access, kvp_rseg_t *rseg);
    void (*rseg_close)(kvp_rseg_t *rseg);

    /* Peers: connect is asynchronous, done fires once (in the call, in ep_poll, or with CANCELLED in ep_close), but not
     * where ep_connect itself fails; UNREACHABLE, VERSION, PROTO, FENCED and BUSY are what a peer's side gives. A name
     * is resolved in the call. ep_close never blocks: every transfer still owned completes with CANCELLED, and nothing
     * touches local memory after it returns. */
    kvp_err_t (*ep_connect)(kvp_tp_t *tp, const kvp_addr_t *to, kvp_ep_t *ep, kvp_ep_done_fn done, void *arg);
    void (*ep_close)(kvp_ep_t *ep);

    /* Data: queue n transfers. *n_out < n means back-pressure: the rest stay the caller's (poll, then submit again).
     * An error means the endpoint is broken; transfers accepted before it still complete. No malloc and no system call
     * per transfer. drain: after it returns nothing of this endpoint touches local memory; it waits for completions
     * until deadline_ns, then gives DEADLINE (the caller closes the endpoint). */
    kvp_err_t (*submit)(kvp_ep_t *ep, kvp_xfer_t *const *xfers, size_t n, size_t *n_out);
    kvp_err_t (*drain)(kvp_ep_t *ep, uint64_t deadline_ns);
    /* Progress: ep_poll runs completions without blocking and returns how many fired. Before sleeping: ep_event_fd and
     * the poll(2) events that ep_arm asks for; -1 where submit is synchronous. */
    size_t (*ep_poll)(kvp_ep_t *ep);
    int (*ep_event_fd)(kvp_ep_t *ep);
    short (*ep_arm)(kvp_ep_t *ep);
    bool (*ep_is_broken)(const kvp_ep_t *ep);
    /* Of one that carries nothing now: whether it is better closed, and the peer attached anew, than used again: a device under
     * it is gone, or the peer has other keys by now. */
    bool (*ep_is_stale)(const kvp_ep_t *ep);

    /* tend does an instance's chores: it notices devices that were removed, or came back. Any thread, every second or so; it
     * does not wait for anything. */
    void (*tend)(kvp_tp_t *tp);
};

/* kvp_transports_init registers the built-in transports with plain calls and fills unset slots; idempotent. */
void kvp_transports_init(void);
/* kvp_transport_find returns the table of that name, or NULL. */
const kvp_transport_ops_t *kvp_transport_find(const char *name);
/* kvp_transports_parse reads "shm,rdma,tcp" into an ordered list of known names. INVALID: a name is unknown, or there is
 * none; NOTSUP: this build or this machine lacks one. why then says what is wrong and what there is, in a sentence. */
kvp_err_t kvp_transports_parse(const char *text, const kvp_transport_ops_t **list, size_t cap, size_t *n_out, char *why,
                               size_t why_cap) KVP_MUST_USE;

/* kvp_transports_wish notes which RDMA devices and which GID this process is to use, as text (NULL or empty: no wish),
 * before rdma is first asked for. INVALID, with a sentence in why. */
kvp_err_t kvp_transports_wish(const char *rdma_device, const char *rdma_gid_index, char *why, size_t cap) KVP_MUST_USE;
/* kvp_transports_default is for those who name none: what this build and this machine have for real data, the best first.
 * What is lacking is left out, and why says so (else it is empty); but NOTSUP, with a sentence in why, where devices of it were wished for. */
kvp_err_t kvp_transports_default(const kvp_transport_ops_t **list, size_t cap, size_t *n_out, char *why, size_t why_cap)
    KVP_MUST_USE;

/* kvp_transports_tend does the process's chores, whether or not it has an instance: devices that a probe opened, and that were
 * removed, are let go, and used again when they are back. Any thread, every second or so; it does not wait for anything. */
void kvp_transports_tend(void);

/* kvp_transports_has_adapter: this machine has an RDMA adapter, which need not be fit for use. */
bool kvp_transports_has_adapter(void);
/* kvp_transports_rdma_ports tells of the ports that rdma uses here, which may be none; of no more than cap. */
size_t kvp_transports_rdma_ports(kvp_rdma_info_t *ports_out, size_t cap);

/* Allocating wrappers: create calls init (destroy calls fini) with memory of the size given by the table. */
kvp_err_t kvp_tp_create(const kvp_transport_ops_t *ops, const kvp_tp_conf_t *conf, kvp_tp_t **tp_out) KVP_MUST_USE;
void kvp_tp_destroy(kvp_tp_t *tp);
kvp_err_t kvp_mr_create(kvp_tp_t *tp, const kvp_mem_t *mem, kvp_mr_t **mr_out) KVP_MUST_USE;
void kvp_mr_destroy(kvp_mr_t *mr);
kvp_err_t kvp_rseg_create(kvp_tp_t *tp, const kvp_token_t *token, uint64_t len, kvp_access_t access,
                          kvp_rseg_t **rseg_out) KVP_MUST_USE;
void kvp_rseg_destroy(kvp_rseg_t *rseg);
kvp_err_t kvp_ep_create(kvp_tp_t *tp, const kvp_addr_t *to, kvp_ep_done_fn done, void *arg, kvp_ep_t **ep_out)
    KVP_MUST_USE;
void kvp_ep_destroy(kvp_ep_t *ep);

#endif
