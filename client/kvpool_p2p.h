/* SPDX-License-Identifier: Apache-2.0
 * kvpool_p2p.h - bytes from one process's memory into another's, with no pool in between: an endpoint registers ranges of its
 * memory, and peers that know its address and theirs read and write them. Nothing runs in the peer's application meanwhile.
 *
 * Calls return 0 (KVPOOL_OK) or a negative error of err.h. Unless a function says otherwise, any thread may call it at any time, also
 * many at once on one endpoint. No call outlives its deadline by more than 200 ms of runnable time, and once it has returned nothing
 * writes to its local memory; after an error a peer of the same host may still read 1 MiB of it. After an error the destination is
 * undefined, here or at the peer, and what was under way to a peer may still arrive in its registered memory until it notices, or
 * until the next transfer of this endpoint with that peer begins: before that moves a byte the peer has ended what is left of those that
 * failed, so none of it lands behind a later write. Other endpoints, also of the same process, know nothing of that; and of connections
 * that failed the last 4096 are remembered.
 *
 * What goes by rdma is done by adapters alone: a write to a peer that is stopped comes to OK, and is there when it goes on.
 *
 * Who can connect to an endpoint's port may read and write what it has registered; with KVPOOL_P2P_TOKENS, who also knows a
 * range's token (by rdma, or has guessed a key of its adapter, of 32 bits). Bytes travel as they are: keep the port inside a network that you trust. An endpoint does not survive fork: in the
 * child every call gives KVPOOL_FORKED, free frees memory only, and its connections are closed: peers are not kept waiting by it.
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
    const char *
        transports; /* some of "cma,rdma,tcp", the default, of which each transfer takes the first that reaches the peer: cma
                               copies between processes of one host that may read one another, rdma and tcp are for all others; those whom
                               none of these reaches are refused. rdma that is named here has to be there (NOTSUP), and without tcp
                               nothing goes by tcp; by default it is used where both hosts have it. $KVPOOL_RDMA_DEVICE and
                               $KVPOOL_RDMA_GID_INDEX choose devices, and say that rdma has to be there */
    const char *host_id; /* default: the machine's id; two ids on one machine count as two hosts */
    uint32_t deadline_ms; /* of a call that gives none; default 30000 */
    uint32_t flags; /* KVPOOL_P2P_* */
    char *
        detail; /* out, where not NULL: what is wrong, a sentence for a person; "" = nothing. Without it, that is logged */
    size_t detail_cap;
} kvpool_p2p_conf_t;

/* kvpool_p2p_open listens, and starts three threads that serve peers, and a fourth where it has rdma. conf may be NULL. INVALID, NOTSUP, SYS (an address that is in
 * use, among others), NOMEM. *p2p_out is set only on success. */
KVPOOL_EXPORT int kvpool_p2p_open(const kvpool_p2p_conf_t *conf, kvpool_p2p_t **p2p_out);

/* kvpool_p2p_close ends everything: calls of other threads give CLOSED and return first, peers lose their connections, and nothing of
 * this process touches registered memory any more. Blocks for 200 ms or so. The endpoint answers CLOSED from then on, until
 * kvpool_p2p_free, which closes first where needed; NULL is ignored there. No other thread may be in a call then. */
KVPOOL_EXPORT int kvpool_p2p_close(kvpool_p2p_t *p2p);
KVPOOL_EXPORT void kvpool_p2p_free(kvpool_p2p_t *p2p);

/* kvpool_p2p_port returns the port that peers connect to, also after close; 0 for NULL. */
KVPOOL_EXPORT uint16_t kvpool_p2p_port(const kvpool_p2p_t *p2p);

/* kvpool_p2p_register lets peers read and write [addr, addr + len), which has to be there and may not overlap a registered range (INVALID), and has to stay
 * mapped and writable until kvpool_p2p_unregister(addr). Where the endpoint has rdma its adapters are told of the memory, which pins it and
 * takes as long as it is large; what they refuse is reached by tcp, or is an error where that is not allowed. token_out, which may be NULL, is what that registration is called: random,
 * never 0, another one the next time. Memory of a GPU (CUDA) is
 * registered as it is, all of it of one device; it is copied through pinned host memory on its side, whichever way the bytes go. Its context lives
 * until the endpoint is closed. Unregister takes the start of a range (NOT_REGISTERED otherwise); it
 * waits for this endpoint's own transfers of which a piece touches it and for a moment's work of peers, whose transfers fail; after it has
 * returned no byte of theirs lands in it. */
KVPOOL_EXPORT int kvpool_p2p_register(kvpool_p2p_t *p2p, void *addr, size_t len, uint64_t *token_out);
KVPOOL_EXPORT int kvpool_p2p_unregister(kvpool_p2p_t *p2p, void *addr);

/* kvpool_p2p_alloc gives len bytes of new memory, zero, and registered under *token_out (which may be NULL): peers of this host that "cma"
 * reaches map it, and copy at memory's speed, without this process having to run. It may be unregistered and registered as
 * any other. NOMEM: also more than the machine has. kvpool_p2p_dealloc unregisters it where it is registered, as a whole or in parts, and takes it
 * away: every range that a byte of it lies in ends, as by unregister. NOT_REGISTERED for what alloc did not give. What is left goes with kvpool_p2p_free; between close and that a peer may end what it was storing there. A forked child
 * does not have it.
 * Unregister without dealloc, of memory that a peer has mapped, copies it into other pages at the same addresses, which peers do not
 * reach: what threads of this process store meanwhile stays, and what a device stores that was told of the pages (RDMA, CUDA, O_DIRECT) does not:
 * such memory is deallocated, or the device told again. NOMEM: there was no memory for that, or (strict overcommit, limits) no promise of any; its
 * contents and addresses are as they were, and it is not registered, but to keep it from peers that are stopped within a copy it has to be freed. */
KVPOOL_EXPORT int kvpool_p2p_alloc(kvpool_p2p_t *p2p, size_t len, void **addr_out, uint64_t *token_out);
KVPOOL_EXPORT int kvpool_p2p_dealloc(kvpool_p2p_t *p2p, void *addr);

#define KVPOOL_P2P_READ 0 /* the peer's memory into local */
#define KVPOOL_P2P_WRITE 1 /* local into the peer's memory */

/* One piece. local need not be registered: it is then len bytes of whatever lies there, which the caller answers for (INVALID where there is no memory). Where it begins in
 * registered memory it has to end there, too, in one range or in several that follow one another without a gap. remote, all len
 * bytes of it, lies in one range of the peer's. len 0 is nothing to do. */
typedef struct {
    void *local;
    uint64_t remote; /* address in the peer */
    size_t len;
    uint64_t token; /* of that range; 0 = whichever is registered there now */
} kvpool_p2p_op_t;

/* kvpool_p2p_transfer moves n pieces, in no order, from or to the endpoint at peer ("HOST:PORT"); OK: all of them are where they
 * belong. deadline_ms 0 = the endpoint's. It connects where it has to, and once more where a connection is lost.
 * NOT_REGISTERED: some piece is not (all) in a range of that peer; or its local memory begins in a range of this endpoint and ends
 * beyond what is registered (submit gives that, too), and then nothing has moved. UNREACHABLE, DISCONNECTED, DEADLINE (a peer that is stopped), VERSION,
 * BUSY (1024 connections are open there), PROTO (what is there is no endpoint, or a broken one), CORRUPT (sums differ: also where the peer's program
 * changes what is being moved), INVALID, NOMEM, CLOSED. With memory of a GPU also SYS (it did not copy), NOTSUP and LIMIT (contexts); of local memory
 * of one that is not registered NOT_REGISTERED. */
KVPOOL_EXPORT int kvpool_p2p_transfer(kvpool_p2p_t *p2p, const char *peer, int kind, const kvpool_p2p_op_t *ops,
                                      size_t n, uint32_t deadline_ms);

/* kvpool_p2p_submit begins the same in the background: peer and ops are copied, local memory has to stay. *id_out is never 0. LIMIT:
 * 4096 are not asked for yet. At most 2 with one peer run at a time, and 32 in all: peers that do not answer delay those with
 * others only where they are 16 or more. kvpool_p2p_poll waits up to timeout_ms for one (0 = not at all): EAGAIN, it is still under way; else OK
 * with what it came to in *result_out, once: after that the id is NOT_FOUND. */
KVPOOL_EXPORT int kvpool_p2p_submit(kvpool_p2p_t *p2p, const char *peer, int kind, const kvpool_p2p_op_t *ops, size_t n,
                                    uint32_t deadline_ms, uint64_t *id_out);
KVPOOL_EXPORT int kvpool_p2p_poll(kvpool_p2p_t *p2p, uint64_t id, uint32_t timeout_ms, int *result_out);

/* kvpool_p2p_first_range tells the peer's registered range of the lowest address: NOT_REGISTERED where there is none. */
KVPOOL_EXPORT int kvpool_p2p_first_range(kvpool_p2p_t *p2p, const char *peer, uint32_t deadline_ms, uint64_t *addr_out,
                                         size_t *len_out);

/* kvpool_p2p_notify leaves a message (two texts, up to 256 and 16384 bytes) with the peer: LIMIT, 1024 lie there already.
 * kvpool_p2p_take_notify takes the oldest that came here: OK and *name_out and *message_out, freed together by one free(*name_out), or
 * NOT_FOUND. */
KVPOOL_EXPORT int kvpool_p2p_notify(kvpool_p2p_t *p2p, const char *peer, const char *name, const char *message,
                                    uint32_t deadline_ms);
KVPOOL_EXPORT int kvpool_p2p_take_notify(kvpool_p2p_t *p2p, char **name_out, char **message_out);

/* What this endpoint's own transfers have moved since it was opened. */
typedef struct {
    size_t struct_size;
    uint64_t transfers; /* calls of transfer, and what was submitted, that came to OK, */
    uint64_t failed; /* and that did not, also what was refused at once (but FORKED and CLOSED) */
    uint64_t cma_bytes; /* by copies between processes of this host; */
    uint64_t mapped_bytes; /* of these, in a peer's own memory (kvpool_p2p_alloc) that is mapped here */
    uint64_t tcp_bytes;
    uint64_t connects; /* connections to peers that were made */
    uint64_t rdma_bytes; /* set where struct_size says that it is there */
} kvpool_p2p_stat_t;
KVPOOL_EXPORT int kvpool_p2p_stat(kvpool_p2p_t *p2p, kvpool_p2p_stat_t *stat_out);

#ifdef __cplusplus
}
#endif
#endif
