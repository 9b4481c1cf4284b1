/* SPDX-License-Identifier: Apache-2.0
 * The seam under the rdma transport: what it asks of a verbs stack. Behind it is libibverbs with librdmacm
 * (ibv.c, the only file that knows their types), or the model NIC of the tests, whose memory operations land late,
 * torn and out of order wherever verbs allow it.
 *
 * Objects: a device is one active port of one adapter with its protection domain; memory is registered with a device. A
 * channel (cm) brings connection events to one thread; an id on it is a listener, or one side of a connection with its
 * queue pair and, where it sends, a completion queue of its own. A channel and its ids belong to one thread at a time,
 * but for id_close, which any thread may call while nobody else uses the id; devices and registrations are for any
 * thread.
 */
#ifndef KVP_TRANSPORT_RDMA_VERBS_DEV_H
#define KVP_TRANSPORT_RDMA_VERBS_DEV_H

#include "transport/rdma/verbs/select.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/socket.h>

#define KVP_RDMA_DEVS_MAX 16u
#define KVP_RDMA_NAME_MAX 64u
#define KVP_RDMA_PCI_MAX 128u
#define KVP_RDMA_NETDEV_MAX 16u
#define KVP_RDMA_SGE_MAX 16u /* pieces of local memory in one work request, where the device takes as many */
#define KVP_RDMA_ASK_MAX 56u /* bytes of ours beside a request for a connection, */
#define KVP_RDMA_ANSWER_MAX 196u /* beside a consent, */
#define KVP_RDMA_REFUSAL_MAX 148u /* and beside a refusal */

/* What is known of a device; it does not change while it is open. */
typedef struct {
    char name[KVP_RDMA_NAME_MAX]; /* "mlx5_0" */
    uint8_t port; /* from 1 */
    int numa_node; /* -1 = not told */
    char
        pci[KVP_RDMA_PCI_MAX]; /* the way to it through the bridges of PCI: "pci0000:3a/0000:3a:00.0/0000:3b:00.0"; "" =
                                   not told */
    struct sockaddr_storage addr; /* of the port, as a peer reaches it: an IPv4 address before IPv6, never link-local
                                     where there is another; ss_family 0 = none */
    char netdev[KVP_RDMA_NETDEV_MAX]; /* the network interface with that address; "" = not told */
    uint32_t mtu_bytes; /* of a packet's payload */
    bool is_soft; /* no adapter but the kernel does it (soft RoCE): what it says to be there may not be */
    bool is_infiniband; /* its subnet's manager gives each path an MTU that both ends take */
    uint32_t max_sge;
    uint32_t max_wr; /* work requests that may be outstanding on a queue pair */
    uint32_t max_reads; /* RDMA READs that may be outstanding, as requester */
    uint64_t max_reg_bytes; /* of one registration */
    uint64_t max_msg_bytes;
} kvp_rdma_info_t;

/* kvp_rdma_is_unspecified: 0.0.0.0 or ::, at which one listens at all devices. */
static inline bool
kvp_rdma_is_unspecified(const struct sockaddr_storage *addr)
{
    if (addr->ss_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)addr)->sin_addr.s_addr == htonl(INADDR_ANY);
    return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)(const void *)addr)->sin6_addr);
}

/* kvp_rdma_set_port: in network byte order. */
static inline void
kvp_rdma_set_port(struct sockaddr_storage *addr, in_port_t port)
{
    if (addr->ss_family == AF_INET)
        ((struct sockaddr_in *)(void *)addr)->sin_port = port;
    else
        ((struct sockaddr_in6 *)(void *)addr)->sin6_port = port;
}

/* The typed bases; each comes first in the stack's own struct, and is the stack's memory. */
typedef struct {
    kvp_rdma_info_t info;
    _Atomic bool
        is_gone; /* it was taken from the machine: nothing can be made on it. The kernel waits with it until all ids
                             on it are closed, which their users do: by an event, or when they see this */
    _Atomic uint32_t life; /* how often it came back: with other keys each time */
} kvp_rdma_dev_t;

/* Keys change when the device comes back, and mean nothing while it is gone. */
typedef struct {
    kvp_rdma_dev_t *dev;
    _Atomic uint32_t lkey;
    _Atomic uint32_t rkey;
    _Atomic bool is_lost; /* LOCAL: when the device came back it took this memory no more; for good, there is no key */
} kvp_rdma_reg_t;

typedef struct {
    int fd; /* readable (poll(2)) when there is an event */
} kvp_rdma_cm_t;

typedef struct {
    kvp_rdma_cm_t *cm;
    kvp_rdma_dev_t *dev; /* NULL before RESOLVED, and of a listener at all devices */
    void *arg; /* the user's; NULL at first */
    uint32_t
        mtu_bytes; /* connect: the user's as well, until RESOLVED: bytes in a packet, at most; 0 = as its port has it */
    int cq_fd; /* readable after arm, when there is a completion; -1 = has no completion queue */
    uint32_t inline_max; /* bytes that may be sent inline; once it has a queue pair */
    uint64_t give_up_ns; /* how long a peer that does not answer is tried until a completion says so; the same */
} kvp_rdma_id_t;

/* What a registration lets peers do. Who may write may read. Relaxed ordering is never asked for. */
typedef enum {
    KVP_RDMA_LOCAL = 0, /* nothing: memory that we read into and write from */
    KVP_RDMA_READABLE = 1,
    KVP_RDMA_WRITABLE = 2,
} kvp_rdma_access_t;

typedef enum {
    KVP_RDMA_ON_ITS_WAY, /* connect: something is known, and nothing to be done. Not every one tells so */
    KVP_RDMA_RESOLVED, /* connect: the id has its device; make the queue pair, then ask */
    KVP_RDMA_REQUEST, /* listener: `id` is new, has its device, and `data` is what the peer sent */
    KVP_RDMA_ESTABLISHED, /* on the asking side `data` is what the peer sent */
    KVP_RDMA_REFUSED, /* `data` is what the peer sent, if it was a program of ours */
    KVP_RDMA_UNREACHABLE, /* no route, no answer */
    KVP_RDMA_GONE, /* the connection is over, or the device under it is: it may come twice, for both; otherwise no more
                      events. Of a machine that died, or over a path that is down, none comes */
} kvp_rdma_event_kind_t;

typedef struct {
    kvp_rdma_event_kind_t kind;
    kvp_rdma_id_t *id;
    uint8_t data[KVP_RDMA_ANSWER_MAX]; /* what comes behind len is not the peer's */
    size_t len;
} kvp_rdma_event_t;

/* Queue sizes; where the device has less, that is what the queue pair gets. sends 0: serves only, and has no completion
 * queue. */
typedef struct {
    uint32_t sends;
    uint32_t sge;
    uint32_t inline_bytes; /* as much as the device takes of it */
} kvp_rdma_caps_t;

typedef struct {
    uint64_t addr;
    uint32_t len;
    uint32_t lkey;
} kvp_rdma_sge_t;

#define KVP_RDMA_WR_READ 0x01u /* else WRITE */
#define KVP_RDMA_WR_FENCE 0x02u /* begins after all earlier READs of this queue pair have ended */
#define KVP_RDMA_WR_SIGNALED 0x04u
#define KVP_RDMA_WR_INLINE 0x08u /* WRITE: the bytes are taken in the call; no lkey is needed */

/* A work request. Those of one queue pair complete in order; what a WRITE moved is in the peer's memory once a READ
 * posted behind it has completed. */
typedef struct {
    uint64_t id;
    uint32_t flags;
    uint32_t sge_n;
    const kvp_rdma_sge_t *sge; /* borrowed for the call */
    uint64_t raddr;
    uint32_t rkey;
} kvp_rdma_wr_t;

typedef enum {
    KVP_RDMA_WC_OK,
    KVP_RDMA_WC_FLUSHED, /* behind one that failed, or the queue pair was gone */
    KVP_RDMA_WC_NO_ACCESS, /* the peer's key or range is not (or no more) what was told */
    KVP_RDMA_WC_NO_ANSWER, /* retries are used up */
    KVP_RDMA_WC_NO_MEMORY, /* our own memory is not (or no more) what was registered: it was freed, by a device */
    KVP_RDMA_WC_FAILED, /* anything else: `code` says what */
} kvp_rdma_wc_status_t;

/* A completion: of a signaled request that went well, or of any that did not. Every one that was posted before it on the
 * same queue pair is over too. */
typedef struct {
    uint64_t id;
    kvp_rdma_wc_status_t status;
    uint32_t code; /* the stack's own number */
} kvp_rdma_wc_t;

typedef struct kvp_verbs_ops {
    const char *name;

    /* devs_open opens all devices with an active port that are wanted, best known first, and keeps them open until
     * devs_close; calls nest, and the first one's selection counts (NULL = none). NOTSUP: there is no stack here, no device, or
     * one that was named cannot be used. why_out: a text that lives until devices are opened again. */
    kvp_err_t (*devs_open)(const kvp_rdma_select_t *selected, kvp_rdma_dev_t **devs_out, size_t cap, size_t *n_out,
                           const char **why_out);
    void (*devs_close)(void);
    /* devs_look notices what became of devices: is_gone, and life. One that comes back is what it was: where it is not, it
     * stays gone. Any thread, as often as one likes; it does not wait for devices. Who has none open may call it as well. */
    void (*devs_look)(void);

    /* Memory can be registered with a device that is gone: it will be when that comes back. NOMEM: also where memlock is too small. INVALID: empty, or larger than max_reg_bytes. dmabuf_fd -1: host memory;
     * else device memory, known at addr, the first byte of which is the dma-buf's (NOTSUP: this stack cannot). After dereg nothing reaches the memory by this
     * registration, and what was acknowledged is in it; its keys are not used again soon. */
    kvp_err_t (*reg)(kvp_rdma_dev_t *dev, void *addr, size_t len, kvp_rdma_access_t access, int dmabuf_fd,
                     kvp_rdma_reg_t **reg_out);
    void (*dereg)(kvp_rdma_reg_t *reg);

    kvp_err_t (*cm_open)(kvp_rdma_cm_t **cm_out);
    void (*cm_close)(kvp_rdma_cm_t *cm); /* its ids are closed */
    /* cm_next: EAGAIN where there is no event; SYS where the channel is broken. A REQUEST's id is the caller's to
     * close. */
    kvp_err_t (*cm_next)(kvp_rdma_cm_t *cm, kvp_rdma_event_t *event_out);

    /* listen: every device (an address of all zeros), or that with the address; port 0 = any, told in port_out. SYS: the
     * port is taken, or no device has the address. */
    kvp_err_t (*listen)(kvp_rdma_cm_t *cm, const struct sockaddr_storage *at, kvp_rdma_id_t **id_out,
                        uint16_t *port_out);
    /* connect begins to look for the way; from is NULL, or the address of the device to use. Then RESOLVED, qp_make,
     * ask; at last ESTABLISHED, REFUSED or UNREACHABLE. */
    kvp_err_t (*connect)(kvp_rdma_cm_t *cm, const struct sockaddr_storage *to, const struct sockaddr_storage *from,
                         kvp_rdma_id_t **id_out);
    kvp_err_t (*qp_make)(kvp_rdma_id_t *id, const kvp_rdma_caps_t *caps);
    kvp_err_t (*ask)(kvp_rdma_id_t *id, const void *data, size_t len);
    kvp_err_t (*accept)(kvp_rdma_id_t *id, const void *data, size_t len);
    kvp_err_t (*refuse)(kvp_rdma_id_t *id, const void *data, size_t len);
    /* id_close: legal in any state. After it no work request of this id touches local memory, and nothing that the peer
     * sent on this connection lands here any more. What was not polled is lost. */
    void (*id_close)(kvp_rdma_id_t *id);

    /* post, after ESTABLISHED was taken: n requests in order, in one ring of the doorbell; *n_out of them were taken, and
     * an error where not all: EAGAIN (the queue is full: a request's place is free once a completion at or behind it was
     * polled), INVALID (ill-formed), DISCONNECTED. On a queue pair that failed they are taken, and flushed. */
    kvp_err_t (*post)(kvp_rdma_id_t *id, const kvp_rdma_wr_t *wrs, size_t n, size_t *n_out);
    size_t (*poll)(kvp_rdma_id_t *id, kvp_rdma_wc_t *wcs, size_t cap);
    /* arm makes cq_fd readable at the next completion, and takes what it said before; poll once more after it. */
    kvp_err_t (*arm)(kvp_rdma_id_t *id);
} kvp_verbs_ops_t;

/* The stack of this machine. */
extern const kvp_verbs_ops_t kvp_verbs_ibv;

#endif
