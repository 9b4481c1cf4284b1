/* SPDX-License-Identifier: Apache-2.0
 * kvpool_p2p.h - moves bytes between the memory of two processes, without a pool. An endpoint registers ranges of its memory.
 * A peer that knows the endpoint's address, and the address of a range, reads and writes that range. The program that owns the
 * range runs nothing meanwhile.
 *
 * A call returns 0 (KVPOOL_OK) or a negative error of err.h. Unless a function says otherwise, any thread may call it at any time,
 * and many threads may use one endpoint at once. A call returns at most 200 ms of runnable time after its deadline. After it has
 * returned, nothing writes to its local memory. After an error a peer of the same host may still read 1 MiB of that memory.
 *
 * After an error the contents of the destination are undefined, here or at the peer. Bytes that were under way to a peer may still
 * arrive in its registered memory, until the peer notices, or until this endpoint begins its next transfer with that peer: before
 * that transfer moves a byte, the peer ends what is left of failed ones. So no old byte lands behind a later write of this
 * endpoint. Other endpoints, also of the same process, do not know of it. The library remembers the last 4096 connections that failed.
 *
 * RDMA adapters move bytes alone: a write to a peer that is stopped returns OK, and the peer finds the bytes when it goes on.
 *
 * Security: whoever can connect to an endpoint's port may read and write what it has registered. With KVPOOL_P2P_TOKENS a peer
 * also needs the token of the range; over RDMA a guessed adapter key of 32 bits is enough. Bytes are not encrypted. Keep the
 * port inside a network that you trust.
 *
 * An endpoint does not survive fork: in the child every call returns KVPOOL_FORKED, free frees memory only, and its connections
 * are closed, so that peers do not wait for it.
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

#define KVPOOL_P2P_TOKENS 1u /* open: peers have to name a range's token */
#define KVPOOL_P2P_TRACEABLE                                                                                           \
    2u /* open: tell Yama (ptrace_scope 1) that processes of this user may read this one, for "cma" */

/* All members may be zero or NULL: defaults. Set struct_size to sizeof(kvpool_p2p_conf_t). Strings are copied. */
typedef struct {
    size_t struct_size;
    const char *listen; /* "HOST:PORT" for peers, port 0 = any; default 127.0.0.1:0 */
    const char
        *transports; /* some of "cma,rdma,tcp", which is the default. A transfer takes the first one that reaches the
                       peer. cma copies between processes of one host that may read one another; rdma and tcp reach all
                       others. rdma that is named must work here (NOTSUP). By default it is used if both hosts have it.
                       $KVPOOL_RDMA_DEVICE and $KVPOOL_RDMA_GID_INDEX choose devices, and then rdma must work here */
    const char *host_id; /* default: the machine's id; two ids on one machine count as two hosts */
    uint32_t deadline_ms; /* of a call that gives none; default 30000 */
    uint32_t flags; /* KVPOOL_P2P_* */
    char *
        detail; /* out, if not NULL: a sentence for a person that says what is wrong; "" = nothing. If NULL, it is logged */
    size_t detail_cap;
} kvpool_p2p_conf_t;

/* kvpool_p2p_open listens, and starts three threads that serve peers, and a fourth if it has rdma. conf may be NULL. INVALID,
 * NOTSUP, SYS (for example, the address is in use), NOMEM. *p2p_out is set only on success. */
KVPOOL_EXPORT int kvpool_p2p_open(const kvpool_p2p_conf_t *conf, kvpool_p2p_t **p2p_out);

/* kvpool_p2p_close ends everything. Calls of other threads return CLOSED first. Peers lose their connections. Nothing of this process
 * touches registered memory any more. It blocks for about 200 ms. From then on every call returns CLOSED.
 * kvpool_p2p_free frees the endpoint, and closes it first if needed. It ignores NULL. No other thread may be in a call then. */
KVPOOL_EXPORT int kvpool_p2p_close(kvpool_p2p_t *p2p);
KVPOOL_EXPORT void kvpool_p2p_free(kvpool_p2p_t *p2p);

/* kvpool_p2p_port returns the port that peers connect to, also after close; 0 for NULL. */
KVPOOL_EXPORT uint16_t kvpool_p2p_port(const kvpool_p2p_t *p2p);

/* kvpool_p2p_register lets peers read and write [addr, addr + len). The range must be mapped and must not overlap a registered one
 * (INVALID). It must stay mapped and writable until kvpool_p2p_unregister(addr). If the endpoint has rdma, the call registers the
 * range with its adapters, which pins the memory and takes as long as the range is large. Ranges that adapters refuse are reached
 * by tcp; if tcp is not allowed, that is an error. *token_out (token_out may be NULL) names this registration: a random number, never 0,
 * a new one each time. The range may be memory of one GPU (CUDA), whose context must live until the endpoint is closed. The owner
 * copies it through bounce buffers, by whichever transport the bytes go.
 *
 * kvpool_p2p_unregister takes the start of a range (NOT_REGISTERED otherwise). It waits for transfers of this endpoint that touch the
 * range, and for a moment's work of peers, whose transfers fail. After it has returned, no byte of a peer lands in the range. */
KVPOOL_EXPORT int kvpool_p2p_register(kvpool_p2p_t *p2p, void *addr, size_t len, uint64_t *token_out);
KVPOOL_EXPORT int kvpool_p2p_unregister(kvpool_p2p_t *p2p, void *addr);

/* kvpool_p2p_alloc returns len bytes of new memory, all zero, registered under *token_out (token_out may be NULL). Peers of this host
 * that "cma" reaches map it. They copy at the speed of memory, and this process need not run. The memory may be unregistered and
 * registered like any other. NOMEM: also if it is more than the machine has. A forked child does not have this memory.
 *
 * kvpool_p2p_dealloc unregisters what is registered of it, as a whole or in parts, and frees it. Every range that contains a byte
 * of it ends, as with unregister. NOT_REGISTERED: alloc did not return that address. kvpool_p2p_free frees what is left. Between close
 * and free a peer may finish what it was storing there.
 *
 * Unregister without dealloc, of memory that a peer has mapped, copies the contents into other pages at the same addresses, which
 * peers do not reach. What threads of this process store meanwhile stays. What a device stores that knows the old pages (RDMA, CUDA,
 * O_DIRECT) is lost: deallocate such memory, or tell the device again. NOMEM: there was no memory for the copy, or (strict
 * overcommit, limits) the system did not promise it. Contents and addresses are then as they were, and the range is not registered,
 * but a peer that is stopped in the middle of a copy may still store there until the memory is freed. */
KVPOOL_EXPORT int kvpool_p2p_alloc(kvpool_p2p_t *p2p, size_t len, void **addr_out, uint64_t *token_out);
KVPOOL_EXPORT int kvpool_p2p_dealloc(kvpool_p2p_t *p2p, void *addr);

#define KVPOOL_P2P_READ 0 /* the peer's memory into local */
#define KVPOOL_P2P_WRITE 1 /* local into the peer's memory */

/* One piece of a transfer. local need not be registered: the piece then moves len bytes at that address, and the caller answers for
 * them (INVALID if nothing is mapped there). If local begins in registered memory it must end in registered memory, in one range or in
 * several that follow one another without a gap. All len bytes at remote lie in one range of the peer. len 0 moves nothing. */
typedef struct {
    void *local;
    uint64_t remote; /* address in the peer */
    size_t len;
    uint64_t token; /* of that range; 0 = whichever is registered there now */
} kvpool_p2p_op_t;

/* kvpool_p2p_transfer moves n pieces, in no order, from or to the endpoint at peer ("HOST:PORT"). OK: all of them have arrived.
 * deadline_ms 0 is the endpoint's deadline. The call connects if it has to, and once more if a connection is lost.
 *   NOT_REGISTERED: a piece does not lie in one range of that peer; or its local memory begins in a range of this endpoint and ends
 *   beyond what is registered, and then nothing has moved (submit returns that too); or local memory is of a GPU and not registered.
 *   UNREACHABLE, DISCONNECTED, VERSION. DEADLINE: for example, the peer is stopped. BUSY: 1024 connections are open there. PROTO: the
 *   peer is no endpoint, or a broken one. CORRUPT: checksums differ, also if the peer's program changes the bytes during the transfer.
 *   INVALID, NOMEM, CLOSED. With memory of a GPU also SYS (it did not copy), NOTSUP, and LIMIT (contexts). */
KVPOOL_EXPORT int kvpool_p2p_transfer(kvpool_p2p_t *p2p, const char *peer, int kind, const kvpool_p2p_op_t *ops,
                                      size_t n, uint32_t deadline_ms);

/* kvpool_p2p_submit begins a transfer in the background. It copies peer and ops; local memory has to stay. *id_out is never 0. LIMIT:
 * 4096 transfers wait for their poll. At most 2 transfers with one peer run at a time, and 32 in all, so peers that do not answer
 * delay transfers with others only if they are 16 or more.
 * kvpool_p2p_poll waits up to timeout_ms (0 = not at all) for a transfer. EAGAIN: it is still under way. OK: *result_out is its result.
 * The result is given once; after that the id is NOT_FOUND. */
KVPOOL_EXPORT int kvpool_p2p_submit(kvpool_p2p_t *p2p, const char *peer, int kind, const kvpool_p2p_op_t *ops, size_t n,
                                    uint32_t deadline_ms, uint64_t *id_out);
KVPOOL_EXPORT int kvpool_p2p_poll(kvpool_p2p_t *p2p, uint64_t id, uint32_t timeout_ms, int *result_out);

/* kvpool_p2p_first_range returns the registered range of the peer with the lowest address, or NOT_REGISTERED if there is none. */
KVPOOL_EXPORT int kvpool_p2p_first_range(kvpool_p2p_t *p2p, const char *peer, uint32_t deadline_ms, uint64_t *addr_out,
                                         size_t *len_out);

/* kvpool_p2p_notify leaves a message with the peer: two texts of at most 256 and 16384 bytes. LIMIT: 1024 messages wait there.
 * kvpool_p2p_take_notify takes the oldest message that came here. OK sets *name_out and *message_out; one free(*name_out) frees both.
 * NOT_FOUND: there is none. */
KVPOOL_EXPORT int kvpool_p2p_notify(kvpool_p2p_t *p2p, const char *peer, const char *name, const char *message,
                                    uint32_t deadline_ms);
KVPOOL_EXPORT int kvpool_p2p_take_notify(kvpool_p2p_t *p2p, char **name_out, char **message_out);

/* What this endpoint's own transfers have moved since it was opened. */
typedef struct {
    size_t struct_size;
    uint64_t transfers; /* transfers, also submitted ones, that ended with OK */
    uint64_t failed; /* transfers that did not, also those refused at once (but for FORKED and CLOSED) */
    uint64_t cma_bytes; /* moved by copies between processes of this host */
    uint64_t mapped_bytes; /* of cma_bytes, what was moved in memory of kvpool_p2p_alloc that is mapped here */
    uint64_t tcp_bytes;
    uint64_t connects; /* connections to peers that were made */
    uint64_t rdma_bytes; /* set if struct_size says that the caller's struct has it */
} kvpool_p2p_stat_t;
KVPOOL_EXPORT int kvpool_p2p_stat(kvpool_p2p_t *p2p, kvpool_p2p_stat_t *stat_out);

#ifdef __cplusplus
}
#endif
#endif
