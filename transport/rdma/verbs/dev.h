/* SPDX-License-Identifier: Apache-2.0
 * The interface between the rdma transport and a verbs stack. The implementations are libibverbs with librdmacm (ibv.c,
 * the only file with their types), and the model NIC of the tests, whose writes take effect late, torn and out of order
 * wherever verbs allow it.
 *
 * Objects: a device is one active port of one adapter with its protection domain; memory is registered with a device. A
 * channel (cm) gives connection events to one thread. An id on a channel is a listener, or one side of a connection
 * with its queue pair and, if it sends, a completion queue of its own. A channel and its ids belong to one thread at a
 * time. Only id_close may be called by any thread while no other thread uses the id. Any thread may use devices and
 * registrations. */
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
#define KVP_RDMA_SGE_MAX 16u /* the most pieces of local memory in one work request; a device may allow fewer */
#define KVP_RDMA_ASK_MAX 56u /* the most bytes that a connection request can carry for kvpool */
#define KVP_RDMA_ANSWER_MAX 196u /* the most bytes that the acceptance of a connection can carry for kvpool */
#define KVP_RDMA_REFUSAL_MAX 148u /* the most bytes that the refusal of a connection can carry for kvpool */

/* Properties of a device; constant while the device is open. */
typedef struct {
    char name[KVP_RDMA_NAME_MAX]; /* the device's name, such as "mlx5_0" */
    uint8_t port; /* the number of the adapter's port, from 1 */
    int numa_node; /* the NUMA node of the device; -1 = unknown */
    char pci[KVP_RDMA_PCI_MAX]; /* PCI path through the bridges: "pci0000:3a/0000:3a:00.0/0000:3b:00.0"; "" = unknown */
    /* the port's address for peers: IPv4 before IPv6, link-local only if there is no other address; ss_family 0 =
     * none */
    struct sockaddr_storage addr;
    char netdev[KVP_RDMA_NETDEV_MAX]; /* the network interface that has the address; "" = unknown */
    uint32_t mtu_bytes; /* the port's MTU: the largest payload of a packet */
    bool is_soft; /* a software adapter (soft RoCE): a READ may complete with wrong bytes */
    bool is_infiniband; /* an InfiniBand port: there the subnet manager gives each path an MTU that fits both ends */
    uint32_t max_sge;
    uint32_t max_wr; /* the most work requests that may be outstanding on a queue pair */
    uint32_t max_reads; /* the most RDMA READs that a requester may have outstanding */
    uint64_t max_reg_bytes; /* the largest memory of one registration, in bytes */
    uint64_t max_msg_bytes;
} kvp_rdma_info_t;

/* kvp_rdma_is_unspecified returns whether the address is 0.0.0.0 or ::, which means to listen at all devices. */
static inline bool
kvp_rdma_is_unspecified(const struct sockaddr_storage *addr)
{
    if (addr->ss_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)addr)->sin_addr.s_addr == htonl(INADDR_ANY);
    return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)(const void *)addr)->sin6_addr);
}

/* kvp_rdma_set_port sets the port of the address; port is in network byte order. */
static inline void
kvp_rdma_set_port(struct sockaddr_storage *addr, in_port_t port)
{
    if (addr->ss_family == AF_INET)
        ((struct sockaddr_in *)(void *)addr)->sin_port = port;
    else
        ((struct sockaddr_in6 *)(void *)addr)->sin6_port = port;
}

/* The common first parts of the structs of a verbs stack, which the stack allocates and frees. */
typedef struct {
    kvp_rdma_info_t info;
    /* The device was removed from the machine: nothing can be created on it. The kernel completes the removal only
     * after all ids on the device were closed. Their users close them after an event, or after reading this flag. */
    _Atomic bool is_gone;
    _Atomic uint32_t life; /* how often the device was removed and has returned; its keys change with each return */
} kvp_rdma_dev_t;

/* A registration. Its keys change when the device returns, and are invalid while the device is removed. */
typedef struct {
    kvp_rdma_dev_t *dev;
    _Atomic uint32_t lkey;
    _Atomic uint32_t rkey;
    _Atomic bool is_lost; /* a returned device refused this LOCAL memory, so the registration gets no key again */
} kvp_rdma_reg_t;

typedef struct {
    int fd; /* the channel's descriptor, readable (poll(2)) while a connection event is pending */
} kvp_rdma_cm_t;

typedef struct {
    kvp_rdma_cm_t *cm;
    kvp_rdma_dev_t *dev; /* the id's device; NULL before RESOLVED, and for a listener at all addresses */
    void *arg; /* a pointer for the user of the connection id; NULL at first */
    /* connect: the MTU that the user may set before RESOLVED; 0 = the MTU of the port */
    uint32_t mtu_bytes;
    int cq_fd; /* readable after `arm` once a completion has come; -1 = the id has no completion queue */
    uint32_t inline_max; /* the most bytes of an inline WRITE; valid after qp_make */
    /* the time after which a work request to a silent peer fails; valid after qp_make */
    uint64_t give_up_ns;
} kvp_rdma_id_t;

/* The access that peers have to a registration. Write access includes read access. Relaxed ordering is never
 * requested. */
typedef enum {
    KVP_RDMA_LOCAL = 0, /* no access for peers: local memory that we read into and write from */
    KVP_RDMA_READABLE = 1,
    KVP_RDMA_WRITABLE = 2,
} kvp_rdma_access_t;

typedef enum {
    KVP_RDMA_ON_ITS_WAY, /* event: connecting goes on, and needs no action; not every stack reports it */
    KVP_RDMA_RESOLVED, /* event: the connecting id has its device; now call qp_make, then ask */
    KVP_RDMA_REQUEST, /* event of a listener: `id` is a new connection with its device; `data` is the peer's request */
    KVP_RDMA_ESTABLISHED, /* event: the connection is made; on the asking side `data` is the peer's answer */
    KVP_RDMA_REFUSED, /* event: the peer refused; `data` is its message if the peer is a kvpool program */
    KVP_RDMA_UNREACHABLE, /* event: connecting failed, for example because there is no route, or no answer */
    /* The connection has ended, or its device was removed: the last event of an id, at most once. A dead machine or a
     * broken path causes no event. */
    KVP_RDMA_GONE,
} kvp_rdma_event_kind_t;

typedef struct {
    kvp_rdma_event_kind_t kind;
    kvp_rdma_id_t *id;
    uint8_t data[KVP_RDMA_ANSWER_MAX]; /* the peer's message in the event; bytes after len are undefined */
    size_t len;
} kvp_rdma_event_t;

/* The wanted sizes of a queue pair; a device with smaller limits gives its limits. sends 0: the queue pair only
 * serves, and has no completion queue. */
typedef struct {
    uint32_t sends;
    uint32_t sge;
    uint32_t inline_bytes; /* the wanted limit of an inline WRITE in bytes; the device may give less */
} kvp_rdma_caps_t;

typedef struct {
    uint64_t addr;
    uint32_t len;
    uint32_t lkey;
} kvp_rdma_sge_t;

#define KVP_RDMA_WR_READ 0x01u /* a READ; without the flag a WRITE */
#define KVP_RDMA_WR_FENCE 0x02u /* the request begins after all earlier READs of this queue pair have completed */
#define KVP_RDMA_WR_SIGNALED 0x04u
#define KVP_RDMA_WR_INLINE 0x08u /* WRITE: the bytes are copied during the call to post; no lkey is needed */

/* A work request. Requests of one queue pair complete in order. The bytes of a WRITE are in the peer's memory once a
 * READ posted after the WRITE has completed. */
typedef struct {
    uint64_t id;
    uint32_t flags;
    uint32_t sge_n;
    const kvp_rdma_sge_t *sge; /* the request's pieces of local memory, borrowed for the call to post */
    uint64_t raddr;
    uint32_t rkey;
} kvp_rdma_wr_t;

typedef enum {
    KVP_RDMA_WC_OK,
    KVP_RDMA_WC_FLUSHED, /* the request's result is not known: an earlier request failed, or the queue pair had ended */
    KVP_RDMA_WC_NO_ACCESS, /* the request failed: the peer's key or range is not valid, or no longer valid */
    KVP_RDMA_WC_NO_ANSWER, /* the request failed: the peer did not answer, and the retries are used up */
    /* the local memory is not the registered memory any more, for example because the program freed device memory */
    KVP_RDMA_WC_NO_MEMORY,
    KVP_RDMA_WC_FAILED, /* any other failure: see `code` */
} kvp_rdma_wc_status_t;

/* A completion of a signaled request that succeeded, or of any request that failed. Every request posted before it on
 * the same queue pair has ended too. */
typedef struct {
    uint64_t id;
    kvp_rdma_wc_status_t status;
    uint32_t code; /* the stack's own error number */
} kvp_rdma_wc_t;

typedef struct kvp_verbs_ops {
    const char *name;

    /* devs_open opens all selected devices (NULL = all) with an active port, in the stack's order, until devs_close.
     * Calls nest, and the selection of the first call counts. NOTSUP: there is no verbs stack or no device, or a
     * selected device cannot be used. why_out: text that lives until devices are opened again. */
    kvp_err_t (*devs_open)(const kvp_rdma_select_t *selected, kvp_rdma_dev_t **devs_out, size_t cap, size_t *n_out,
                           const char **why_out);
    void (*devs_close)(void);
    /* devs_look updates is_gone and life of the open devices. A device that returns with other properties stays
     * removed. Any thread, as often as wanted; does not wait for devices; does nothing without an open device. */
    void (*devs_look)(void);

    /* reg registers memory. On a removed device the registration takes effect when the device returns. NOMEM: also if
     * the memlock limit is too small. INVALID: empty, or larger than max_reg_bytes. dmabuf_fd -1: host memory; else
     * device memory at addr, which is the first byte of the dma-buf (NOTSUP: the stack cannot). dereg ends the
     * registration: afterwards no access with its keys reaches the memory, acknowledged writes are in the memory, and
     * the keys are not reused soon. */
    kvp_err_t (*reg)(kvp_rdma_dev_t *dev, void *addr, size_t len, kvp_rdma_access_t access, int dmabuf_fd,
                     kvp_rdma_reg_t **reg_out);
    void (*dereg)(kvp_rdma_reg_t *reg);

    kvp_err_t (*cm_open)(kvp_rdma_cm_t **cm_out);
    void (*cm_close)(kvp_rdma_cm_t *cm); /* all ids of the channel must be closed before */
    /* cm_next returns the next event. EAGAIN: no event. SYS: the channel is broken. The caller owns a REQUEST's id. */
    kvp_err_t (*cm_next)(kvp_rdma_cm_t *cm, kvp_rdma_event_t *event_out);

    /* listen listens at every device (an address of all zeros), or at the device with the address. port 0 = any; the
     * port is returned in port_out. BUSY: the port is in use. SYS: no device has the address. */
    kvp_err_t (*listen)(kvp_rdma_cm_t *cm, const struct sockaddr_storage *at, kvp_rdma_id_t **id_out,
                        uint16_t *port_out);
    /* connect begins to connect. from is NULL, or the address of the device to use. After the event RESOLVED the
     * caller calls qp_make and ask; then the event ESTABLISHED, REFUSED or UNREACHABLE follows. */
    kvp_err_t (*connect)(kvp_rdma_cm_t *cm, const struct sockaddr_storage *to, const struct sockaddr_storage *from,
                         kvp_rdma_id_t **id_out);
    kvp_err_t (*qp_make)(kvp_rdma_id_t *id, const kvp_rdma_caps_t *caps);
    kvp_err_t (*ask)(kvp_rdma_id_t *id, const void *data, size_t len);
    kvp_err_t (*accept)(kvp_rdma_id_t *id, const void *data, size_t len);
    kvp_err_t (*refuse)(kvp_rdma_id_t *id, const void *data, size_t len);
    /* id_close closes an id in any state. Afterwards no work request of the id touches local memory, and no byte of
     * the peer lands by this connection. Completions that were not polled are lost. */
    void (*id_close)(kvp_rdma_id_t *id);

    /* post posts n requests in order with one ring of the doorbell, after ESTABLISHED was read; *n_out were accepted.
     * If not all, an error, for example because the queue is full: the place of a request becomes free when a
     * completion of this or a later request is polled. A failed queue pair accepts requests and flushes them. */
    kvp_err_t (*post)(kvp_rdma_id_t *id, const kvp_rdma_wr_t *wrs, size_t n, size_t *n_out);
    size_t (*poll)(kvp_rdma_id_t *id, kvp_rdma_wc_t *wcs, size_t cap);
    /* arm makes cq_fd readable at the next completion, and clears its earlier state. The caller must poll once more
     * after arm. */
    kvp_err_t (*arm)(kvp_rdma_id_t *id);
} kvp_verbs_ops_t;

/* The verbs stack of this machine: libibverbs. */
extern const kvp_verbs_ops_t kvp_verbs_ibv;

#endif
