/* SPDX-License-Identifier: Apache-2.0
 * The seam under the rdma transport: its calls to a verbs stack. The implementations are libibverbs
 * with librdmacm (ibv.c, the only file with their types), and the tests' model NIC, whose memory
 * operations land late, torn and out of order wherever verbs allow it.
 *
 * Objects: a device is one active port of one adapter with its protection domain; memory is
 * registered with a device. A channel (cm) brings connection events to one thread. An id on it is a
 * listener, or one side of a connection with its queue pair and, if it sends, a completion queue of
 * its own. A channel and its ids belong to one thread at a time. Only id_close may come from any
 * thread while no other thread uses the id. Devices and registrations are for any thread. */
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

/* Properties of a device; constant while the device is open. */
typedef struct {
    char name[KVP_RDMA_NAME_MAX]; /* "mlx5_0" */
    uint8_t port; /* from 1 */
    int numa_node; /* -1 = unknown */
    char pci[KVP_RDMA_PCI_MAX]; /* PCI path through the bridges: "pci0000:3a/0000:3a:00.0/0000:3b:00.0"; "" = unknown */
    struct sockaddr_storage addr; /* of the port, as a peer reaches it: an IPv4 address before IPv6, never link-local
                                     where there is another; ss_family 0 = none */
    char netdev[KVP_RDMA_NETDEV_MAX]; /* network interface of the address; "" = unknown */
    uint32_t mtu_bytes; /* of a packet's payload */
    bool is_soft; /* the kernel plays the adapter (soft RoCE): a completed READ may have wrong bytes */
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
        /* Removed from the machine: nothing can be created on the device. The kernel waits with the
         * removal until the users close all ids on it, after an event or after reading this flag. */
        is_gone;
    _Atomic uint32_t life; /* number of returns, each with new keys */
} kvp_rdma_dev_t;

/* Keys change when the device returns, and are invalid while it is removed. */
typedef struct {
    kvp_rdma_dev_t *dev;
    _Atomic uint32_t lkey;
    _Atomic uint32_t rkey;
    _Atomic bool is_lost; /* LOCAL: the returned device refused this memory; permanent, without a key */
} kvp_rdma_reg_t;

typedef struct {
    int fd; /* readable (poll(2)) with a pending event */
} kvp_rdma_cm_t;

typedef struct {
    kvp_rdma_cm_t *cm;
    kvp_rdma_dev_t *dev; /* NULL before RESOLVED, and of a listener at all devices */
    void *arg; /* the user's; NULL at first */
    uint32_t
        mtu_bytes; /* connect: the user's as well, until RESOLVED: bytes in a packet, at most; 0 = as its port has it */
    int cq_fd; /* readable after arm, when there is a completion; -1 = has no completion queue */
    uint32_t inline_max; /* bytes that may be sent inline; valid with a queue pair */
    uint64_t give_up_ns; /* time until a silent peer gives a failed completion; valid with a queue pair */
} kvp_rdma_id_t;

/* Access of peers to a registration. Write access includes read access. Relaxed ordering is never
 * requested. */
typedef enum {
    KVP_RDMA_LOCAL = 0, /* nothing: memory that we read into and write from */
    KVP_RDMA_READABLE = 1,
    KVP_RDMA_WRITABLE = 2,
} kvp_rdma_access_t;

typedef enum {
    KVP_RDMA_ON_ITS_WAY, /* connect: progress that needs no action; not every stack reports it */
    KVP_RDMA_RESOLVED, /* connect: the id has its device; make the queue pair, then ask */
    KVP_RDMA_REQUEST, /* listener: `id` is new, has its device, and `data` is what the peer sent */
    KVP_RDMA_ESTABLISHED, /* on the asking side `data` is what the peer sent */
    KVP_RDMA_REFUSED, /* `data` is the peer's message, if the peer is a program of ours */
    KVP_RDMA_UNREACHABLE, /* no route, no answer */
    /* The connection has ended, or the device under it was removed; at most one event for each, and
     * no others follow. A dead machine or a broken path sends no event. */
    KVP_RDMA_GONE,
} kvp_rdma_event_kind_t;

typedef struct {
    kvp_rdma_event_kind_t kind;
    kvp_rdma_id_t *id;
    uint8_t data[KVP_RDMA_ANSWER_MAX]; /* bytes after len are not the peer's */
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

/* A work request. Requests of one queue pair complete in order. The bytes of a WRITE are in the
 * peer's memory once a READ posted after it has completed. */
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
    KVP_RDMA_WC_FLUSHED, /* an earlier request failed, or the queue pair had ended */
    KVP_RDMA_WC_NO_ACCESS, /* the peer's key or range is not valid, or not valid any more */
    KVP_RDMA_WC_NO_ANSWER, /* retries are used up */
    KVP_RDMA_WC_NO_MEMORY, /* our own memory is not (or no more) what was registered: it was freed, by a device */
    KVP_RDMA_WC_FAILED, /* any other failure: see `code` */
} kvp_rdma_wc_status_t;

/* A completion: of a signaled request that succeeded, or of any request that failed. Every request
 * posted before it on the same queue pair is over too. */
typedef struct {
    uint64_t id;
    kvp_rdma_wc_status_t status;
    uint32_t code; /* the stack's own number */
} kvp_rdma_wc_t;

typedef struct kvp_verbs_ops {
    const char *name;

    /* devs_open opens all wanted devices with an active port, best first, until devs_close. Calls
     * nest, and the first call's selection counts (NULL = none). NOTSUP: no verbs stack, no device,
     * or a selected device cannot be used. why_out: text that lives until devices are opened again. */
    kvp_err_t (*devs_open)(const kvp_rdma_select_t *selected, kvp_rdma_dev_t **devs_out, size_t cap, size_t *n_out,
                           const char **why_out);
    void (*devs_close)(void);
    /* devs_look updates is_gone and life of the open devices. A device that returns with other
     * properties stays removed. Any thread, at any rate; does not wait for devices; legal without
     * an open device. */
    void (*devs_look)(void);

    /* reg registers memory. On a removed device the registration takes effect with its return.
     * NOMEM: also if memlock is too small. INVALID: empty, or larger than max_reg_bytes. dmabuf_fd
     * -1: host memory; else device memory at addr, which is the first byte of the dma-buf (NOTSUP:
     * not with this stack). After dereg no access by the registration reaches the memory,
     * acknowledged writes are in it, and its keys are not reused soon. */
    kvp_err_t (*reg)(kvp_rdma_dev_t *dev, void *addr, size_t len, kvp_rdma_access_t access, int dmabuf_fd,
                     kvp_rdma_reg_t **reg_out);
    void (*dereg)(kvp_rdma_reg_t *reg);

    kvp_err_t (*cm_open)(kvp_rdma_cm_t **cm_out);
    void (*cm_close)(kvp_rdma_cm_t *cm); /* its ids are closed */
    /* cm_next: EAGAIN without an event; SYS for a broken channel. The caller closes a REQUEST's id. */
    kvp_err_t (*cm_next)(kvp_rdma_cm_t *cm, kvp_rdma_event_t *event_out);

    /* listen: on every device (an address of all zeros), or on the device of the address; port 0 =
     * any port, returned in port_out. SYS: the port is in use, or no device has the address. */
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
    /* id_close: legal in any state. After it no work request of the id touches local memory, and no
     * byte of the peer lands here by this connection. Completions not polled are lost. */
    void (*id_close)(kvp_rdma_id_t *id);

    /* post, after ESTABLISHED was read: posts n requests in order with one ring of the doorbell;
     * *n_out were accepted. If not all: EAGAIN (the queue is full: a request's place is free once a
     * completion at or after it was polled), INVALID (ill-formed), DISCONNECTED. A failed queue
     * pair accepts requests and flushes them. */
    kvp_err_t (*post)(kvp_rdma_id_t *id, const kvp_rdma_wr_t *wrs, size_t n, size_t *n_out);
    size_t (*poll)(kvp_rdma_id_t *id, kvp_rdma_wc_t *wcs, size_t cap);
    /* arm makes cq_fd readable at the next completion, and clears its earlier state; poll once more
     * afterwards. */
    kvp_err_t (*arm)(kvp_rdma_id_t *id);
} kvp_verbs_ops_t;

/* The verbs stack of this machine. */
extern const kvp_verbs_ops_t kvp_verbs_ibv;

#endif
