/* SPDX-License-Identifier: Apache-2.0
 * kvpool_p2p.h - transfers between the memory of two processes, without a pool. An endpoint
 * registers ranges of its memory. A peer that knows the endpoint's address and the address of a
 * range reads and writes the range. The program that owns the range executes no code meanwhile.
 *
 * Unless a function says otherwise, these rules hold for all functions:
 *   Blocking: the call returns at most 200 ms of runnable time after its deadline.
 *   Threads: any thread may call at any time, and many threads may share one endpoint.
 *   Ownership: the library borrows all pointers until the call returns. After the return, nothing
 *     writes to local memory of the call. After an error a peer of the same host may still read up
 *     to 1 MiB of that memory.
 *   Errors: the call returns 0 (KVPOOL_OK) or a negative number of err.h. Each function lists its
 *     special errors. Every function may also return INVALID, CLOSED, FORKED and NOMEM. Results go
 *     to the pointers whose names end in _out, which the library sets only on success.
 *
 * After an error the contents of the destination are undefined, in this process or in the peer.
 * Bytes on their way to a peer may still arrive in its registered memory, until the peer notices
 * the failure, or until this endpoint starts its next transfer with the peer. Before that transfer
 * moves a byte, the peer ends all failed transfers. So no old byte overwrites a later write of this
 * endpoint. Other endpoints, also those of the same process, get no such protection. The library
 * remembers the last 4096 failed connections.
 *
 * An RDMA adapter moves bytes without its program. A write to a stopped peer returns OK, and the
 * peer finds the bytes when it continues.
 *
 * Security: every process that can connect to an endpoint's port may read and write all memory that
 * the endpoint has registered. With KVPOOL_P2P_TOKENS a peer also needs the token of the range;
 * over RDMA, a guessed adapter key of 32 bits is enough. Bytes are not encrypted. Keep the port
 * inside a network that you trust.
 *
 * An endpoint does not survive fork. In the child every call returns FORKED, and kvpool_p2p_free
 * only frees memory. The child's copies of the connections are closed, so that peers do not wait
 * for the child.
 */
#ifndef KVPOOL_P2P_H
#define KVPOOL_P2P_H

#if __has_include("client/kvpool.h")
#include "client/kvpool.h"
#else
#include <kvpool.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvpool_p2p kvpool_p2p_t;

/* ---- Endpoints */

/* Flags of kvpool_p2p_conf_t. */
enum {
    /* Peers must name the token of a range to reach the range. */
    KVPOOL_P2P_TOKENS = 1,
    /* Permits other processes of this user to read this process, for "cma", on systems where Yama
     * restricts that (ptrace_scope 1). */
    KVPOOL_P2P_TRACEABLE = 2,
};

/* The configuration of an endpoint. Zero or NULL in a member means its default. The caller sets
 * struct_size to sizeof(kvpool_p2p_conf_t). The library copies all strings. */
typedef struct {
    size_t struct_size;
    /* The address for peers, "HOST:PORT". Port 0 means any free port. Default: 127.0.0.1:0. */
    const char *listen;
    /* Some of "cma,rdma,tcp", which is the default. A transfer uses the first transport that
     * reaches the peer. "cma" copies between processes of one host that may read each other's
     * memory; "rdma" and "tcp" reach all other peers. By default "rdma" is used if both hosts have
     * it. A named "rdma" must work on this machine (NOTSUP). $KVPOOL_RDMA_DEVICE and
     * $KVPOOL_RDMA_GID_INDEX choose devices; then "rdma" must work, too. */
    const char *transports;
    /* The id of the endpoint's host. Processes with two host ids on one machine count as two
     * hosts. Default: the machine's id. */
    const char *host_id;
    /* The deadline of calls without one, in milliseconds. Default: 30000. */
    uint32_t deadline_ms;
    /* KVPOOL_P2P_TOKENS, KVPOOL_P2P_TRACEABLE. */
    uint32_t flags;
    /* Output, if not NULL: one sentence that names the fault in the configuration or on this
     * machine, or "". If NULL, the library logs the sentence. */
    char *detail;
    size_t detail_cap;
} kvpool_p2p_conf_t;

/* kvpool_p2p_open listens for peers, and starts three threads that serve peers, and a fourth with
 * RDMA. conf may be NULL.
 *   Ownership: the caller frees *p2p_out with kvpool_p2p_free.
 *   Errors: NOTSUP, SYS (for example, the address is in use). */
KVPOOL_EXPORT int kvpool_p2p_open(const kvpool_p2p_conf_t *conf, kvpool_p2p_t **p2p_out);

/* kvpool_p2p_close ends all transfers and connections. Calls of other threads return CLOSED first,
 * and later calls return CLOSED. After it, nothing of this process touches registered memory.
 *   Blocking: about 200 ms. */
KVPOOL_EXPORT int kvpool_p2p_close(kvpool_p2p_t *p2p);

/* kvpool_p2p_free closes the endpoint if it is open, and frees it. NULL is ignored.
 *   Blocking: as kvpool_p2p_close.
 *   Threads: no other thread may be in a call on the endpoint. */
KVPOOL_EXPORT void kvpool_p2p_free(kvpool_p2p_t *p2p);

/* kvpool_p2p_port returns the port for peers, also after kvpool_p2p_close. For NULL it returns
 * 0. */
KVPOOL_EXPORT uint16_t kvpool_p2p_port(const kvpool_p2p_t *p2p);

/* ---- Registered memory */

/* kvpool_p2p_register lets peers read and write [addr, addr + len). *token_out (may be NULL) names
 * the registration: a random number other than 0, a new one for each call. With RDMA the call
 * registers the range with the adapters, which pins the memory. If an adapter refuses a range,
 * peers reach the range by "tcp"; if "tcp" is not allowed, the refusal is an error. The range may
 * be memory of one GPU (CUDA). The owner then copies the bytes through bounce buffers, on every
 * transport.
 *   Blocking: with RDMA, for a time that grows with len.
 *   Ownership: the caller keeps the range mapped and writable until kvpool_p2p_unregister, and a
 *     CUDA context alive until kvpool_p2p_close.
 *   Errors: INVALID (not mapped, or overlaps a registered range). */
KVPOOL_EXPORT int kvpool_p2p_register(kvpool_p2p_t *p2p, void *addr, size_t len, uint64_t *token_out);

/* kvpool_p2p_unregister ends the registration of the range that starts at addr. After it, no byte
 * of a peer arrives in the range.
 *   Blocking: until the own transfers that touch the range have ended, and shortly for those of
 *     peers, which fail.
 *   Errors: NOT_REGISTERED (no range starts at addr).
 * Memory of kvpool_p2p_alloc that a peer has mapped gets new pages at the same addresses, with the
 * same contents, which peers do not reach. Stores of threads of this process during the exchange
 * are kept. Stores of a device that knows the old pages (RDMA, CUDA, O_DIRECT) are lost: free such
 * memory with kvpool_p2p_dealloc, or register it with the device again. NOMEM: there is not enough
 * memory for the copy, or the system did not promise it (strict overcommit, limits). Then contents
 * and addresses stay as they were, and the range is not registered, but a peer that stopped during
 * a copy may still store there until the memory is freed. */
KVPOOL_EXPORT int kvpool_p2p_unregister(kvpool_p2p_t *p2p, void *addr);

/* kvpool_p2p_alloc returns len zero bytes of new memory, registered under *token_out (may be NULL).
 * Peers of this host that "cma" reaches map the memory, copy at the speed of memory, and do not
 * need this process to run. The memory may be unregistered and registered like any other. A forked
 * child does not have the memory.
 *   Ownership: the caller frees the memory with kvpool_p2p_dealloc; kvpool_p2p_free frees the rest.
 *   Errors: NOMEM (also if len is more than the machine has). */
KVPOOL_EXPORT int kvpool_p2p_alloc(kvpool_p2p_t *p2p, size_t len, void **addr_out, uint64_t *token_out);

/* kvpool_p2p_dealloc unregisters every range with a byte of the memory, and frees the memory.
 * Between kvpool_p2p_close and kvpool_p2p_free a peer may finish a copy into the memory.
 *   Blocking: as kvpool_p2p_unregister.
 *   Errors: NOT_REGISTERED (kvpool_p2p_alloc did not return addr). */
KVPOOL_EXPORT int kvpool_p2p_dealloc(kvpool_p2p_t *p2p, void *addr);

/* ---- Transfers */

/* Kinds of a transfer. */
enum {
    /* From the peer's memory into local memory. */
    KVPOOL_P2P_READ = 0,
    /* From local memory into the peer's memory. */
    KVPOOL_P2P_WRITE = 1,
};

/* One piece of a transfer. Local memory need not be registered; then the caller answers for all len
 * bytes at the address (INVALID if nothing is mapped there). A piece whose local memory starts in a
 * registered range must end in the same range or in ranges that follow without a gap. All len bytes
 * at remote must lie in one range of the peer. */
typedef struct {
    void *local;
    /* An address in the peer. */
    uint64_t remote;
    /* Bytes. 0 moves nothing. */
    size_t len;
    /* The token of the peer's range. 0 = any range that is registered there now. */
    uint64_t token;
} kvpool_p2p_op_t;

/* kvpool_p2p_transfer moves n pieces, in no order, to or from the endpoint at peer ("HOST:PORT").
 * OK means that all pieces have arrived. The call connects if necessary, and once more if a
 * connection is lost. deadline_ms 0 is the endpoint's deadline.
 *   Errors: NOT_REGISTERED (a piece does not lie in one range of the peer; or its local memory
 *     starts in a range and ends outside of all ranges, and nothing has moved; or it is GPU memory
 *     that is not registered), UNREACHABLE, DISCONNECTED, VERSION, DEADLINE (for example, the peer
 *     is stopped), BUSY (the peer has 1024 connections), PROTO (the peer is no endpoint, or a
 *     faulty one), CORRUPT (a checksum differs, also if the peer's program changes the bytes during
 *     the transfer). With GPU memory also SYS (the GPU did not copy), NOTSUP, and LIMIT
 *     (contexts). */
KVPOOL_EXPORT int kvpool_p2p_transfer(kvpool_p2p_t *p2p, const char *peer, int kind, const kvpool_p2p_op_t *ops,
                                      size_t n, uint32_t deadline_ms);

/* kvpool_p2p_submit starts a transfer in the background. *id_out is not 0. At most 2 transfers with
 * one peer and 32 in all run at a time; so 16 peers that do not answer delay the transfers with
 * other peers.
 *   Blocking: does not block.
 *   Ownership: the library copies peer and ops. The local memory belongs to the transfer until
 *     kvpool_p2p_poll returns its result.
 *   Errors: LIMIT (4096 transfers wait for kvpool_p2p_poll), NOT_REGISTERED (local memory, as
 *     above). */
KVPOOL_EXPORT int kvpool_p2p_submit(kvpool_p2p_t *p2p, const char *peer, int kind, const kvpool_p2p_op_t *ops, size_t n,
                                    uint32_t deadline_ms, uint64_t *id_out);

/* kvpool_p2p_poll waits for a submitted transfer. OK: *result_out is the result of the transfer.
 * The library gives the result once.
 *   Blocking: up to timeout_ms; 0 = not at all.
 *   Errors: EAGAIN (the transfer is under way), NOT_FOUND (no such id, or its result was given). */
KVPOOL_EXPORT int kvpool_p2p_poll(kvpool_p2p_t *p2p, uint64_t id, uint32_t timeout_ms, int *result_out);

/* ---- Peers */

/* kvpool_p2p_first_range returns the registered range of the peer with the lowest address.
 *   Errors: NOT_REGISTERED (the peer has no range); errors of a connection as
 *   kvpool_p2p_transfer. */
KVPOOL_EXPORT int kvpool_p2p_first_range(kvpool_p2p_t *p2p, const char *peer, uint32_t deadline_ms, uint64_t *addr_out,
                                         size_t *len_out);

/* kvpool_p2p_notify leaves a message with the peer: a name of at most 256 bytes and a text of at
 * most 16384 bytes.
 *   Errors: LIMIT (1024 messages wait at the peer); errors of a connection as
 *   kvpool_p2p_transfer. */
KVPOOL_EXPORT int kvpool_p2p_notify(kvpool_p2p_t *p2p, const char *peer, const char *name, const char *message,
                                    uint32_t deadline_ms);

/* kvpool_p2p_take_notify takes the oldest message that peers have left here.
 *   Blocking: does not block.
 *   Ownership: one free(*name_out) frees both strings.
 *   Errors: NOT_FOUND (no message waits). */
KVPOOL_EXPORT int kvpool_p2p_take_notify(kvpool_p2p_t *p2p, char **name_out, char **message_out);

/* Totals of the endpoint's own transfers since kvpool_p2p_open. */
typedef struct {
    size_t struct_size;
    /* Transfers that ended with OK, submitted ones included. */
    uint64_t transfers;
    /* Transfers that ended with an error, also those that were refused at once (but for FORKED and
     * CLOSED). */
    uint64_t failed;
    /* Bytes that were copied between processes of this host. */
    uint64_t cma_bytes;
    /* The part of cma_bytes that was copied through a mapping of a peer's memory. */
    uint64_t mapped_bytes;
    uint64_t tcp_bytes;
    /* Connections to peers that were made. */
    uint64_t connects;
    /* Bytes that RDMA moved. Set only if struct_size includes this field. */
    uint64_t rdma_bytes;
} kvpool_p2p_stat_t;

/* kvpool_p2p_stat writes the totals.
 *   Blocking: does not block. */
KVPOOL_EXPORT int kvpool_p2p_stat(kvpool_p2p_t *p2p, kvpool_p2p_stat_t *stat_out);

#ifdef __cplusplus
}
#endif
#endif
