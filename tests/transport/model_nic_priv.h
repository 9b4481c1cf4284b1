/* SPDX-License-Identifier: Apache-2.0
 * Inside the model NIC: its objects, and what its files (model_nic.c, model_nic_conn.c, model_nic_wire.c) ask of one
 * another. All of it is guarded by the model's mutex, between nic_enter and nic_exit. */
#ifndef KVP_TESTS_TRANSPORT_MODEL_NIC_PRIV_H
#define KVP_TESTS_TRANSPORT_MODEL_NIC_PRIV_H

#include "tests/transport/model_nic.h"

#include "common/list.h"

#define REGS_MAX 4096u /* of a device */
#define PIECE 64u

typedef struct {
    kvp_rdma_reg_t base;
    uint8_t *addr;
    size_t len;
    kvp_rdma_access_t access;
    uint32_t slot;
    int dmabuf_fd; /* of our own; -1 = it is none */
    uint8_t *map; /* the dma-buf's bytes */
    bool is_peer;
} nic_reg_t;

typedef enum {
    DEV_HERE,
    DEV_REMOVED,
    DEV_BACK, /* and nobody has looked */
} dev_state_t;

typedef struct {
    kvp_rdma_dev_t base;
    uint32_t index;
    nic_reg_t *regs[REGS_MAX];
    uint32_t gens[REGS_MAX]; /* a slot's keys so far */
    uint32_t last_slot; /* where the search for a free one begins */
    uint64_t locked_bytes;
    dev_state_t state;
} nic_dev_t;

typedef struct {
    kvp_rdma_cm_t base;
    kvp_list_t link;
    kvp_list_t pending; /* nic_event_t that are under way */
    kvp_list_t ready; /* those that cm_next gives */
    bool is_dead;
} nic_cm_t;

typedef struct {
    kvp_list_t link;
    kvp_rdma_event_t what;
} nic_event_t;

typedef enum {
    ID_RESOLVING,
    ID_RESOLVED,
    ID_ASKED,
    ID_REQUESTED, /* the listener's side, not answered */
    ID_ACCEPTED, /* the listener's side, answered: bytes may land */
    ID_CONNECTED,
    ID_LISTENING,
    ID_OVER, /* refused, unreachable */
    ID_DEAD, /* killed */
} id_state_t;

/* A work request, from post until it is retired from the send queue and, if it writes, has landed. */
typedef struct {
    kvp_list_t sq_link;
    kvp_list_t land_link;
    nic_dev_t *dev; /* of the requester */
    uint64_t id;
    uint32_t flags;
    uint32_t sge_n;
    kvp_rdma_sge_t sge[KVP_RDMA_SGE_MAX];
    uint64_t len;
    uint64_t raddr;
    uint32_t rkey;
    uint64_t seq;
    bool is_sent;
    bool is_done; /* READ: all bytes are here; WRITE: acknowledged; or it failed */
    bool is_acked;
    kvp_rdma_wc_status_t status;
    uint32_t code;
    uint8_t *bytes; /* WRITE: what departed */
    uint64_t pieces_n;
    uint64_t pieces_left;
    uint64_t piece_at; /* the order of pieces: at, at + stride, ... modulo their number */
    uint64_t stride;
} nic_msg_t;

typedef struct {
    kvp_rdma_wc_t wc;
    uint32_t covers; /* requests whose places in the queue are free again with it */
} nic_cqe_t;

typedef struct id {
    kvp_rdma_id_t base;
    kvp_list_t link;
    id_state_t state;
    struct id *peer; /* NULL: none yet, or it has closed */
    struct id *listener; /* of a REQUEST that has not been taken */
    nic_dev_t *dev; /* base.dev is set when the user is told */
    nic_dev_t *to; /* connecting: the peer's device */
    uint16_t port;
    bool has_qp;
    bool has_consent; /* ESTABLISHED is told, or under way to the user */
    kvp_rdma_caps_t caps;
    kvp_list_t sq; /* nic_msg_t by sq_link */
    kvp_list_t landing; /* nic_msg_t by land_link: WRITEs that departed and are not in the peer's memory */
    kvp_list_t orphans; /* the same of a peer that has closed, towards our memory */
    uint64_t seq;
    uint64_t fail_seq; /* the first request that failed; nothing behind it goes on */
    bool is_error;
    bool is_silent; /* its requests neither go on nor end */
    uint32_t reads_open; /* departed, not ended */
    uint32_t ticks; /* tries in vain */
    uint32_t used; /* places of the send queue: free when a completion at or behind them is polled */
    uint32_t retired; /* since the last completion */
    nic_cqe_t *cq; /* ring of caps.sends */
    uint32_t cq_head;
    uint32_t cq_n;
    bool is_armed;
} nic_id_t;

typedef struct {
    model_nic_conf_t conf;
    uint64_t rng;
    uint32_t weights[8]; /* of what happens to a queue pair: seeds differ in what is slow */
    bool is_paused;
    bool is_down[MODEL_NIC_DEVS_MAX][MODEL_NIC_DEVS_MAX];
    nic_dev_t devs[MODEL_NIC_DEVS_MAX];
    uint32_t opens;
    uint32_t regs_n;
    const void *refused_addr; /* see model_nic_refuse_memory */
    bool refuses_post; /* see model_nic_refuse_post */
    uint16_t next_port;
    kvp_list_t cms;
    kvp_list_t ids;
    model_nic_counts_t counts;
} nic_t;

extern nic_t model_nic;

static inline nic_id_t *
nic_id_of(kvp_rdma_id_t *id)
{
    return kvp_container_of(id, nic_id_t, base);
}

static inline nic_cm_t *
nic_cm_of(kvp_rdma_cm_t *cm)
{
    return kvp_container_of(cm, nic_cm_t, base);
}

void nic_enter(void);
void nic_exit(void);
void nic_step_some(void); /* what a call lets happen before it looks */
uint64_t nic_below(uint64_t n); /* 0 to n-1 */
bool nic_coin(void);

/* Of model_nic_conn.c: nic_deliver_some lets one event of a channel arrive; nic_id_leave ends an id's part in its
 * connection and leaves the id; the rest is the seam's. */
bool nic_deliver_some(nic_cm_t *cm);
void nic_id_leave(nic_id_t *id, bool is_silent);
void nic_cm_end(nic_cm_t *cm);
void nic_id_dev_removed(nic_id_t *id, bool is_told); /* the device under it was */
kvp_err_t nic_cm_open(kvp_rdma_cm_t **cm_out);
void nic_cm_close(kvp_rdma_cm_t *cm);
kvp_err_t nic_cm_next(kvp_rdma_cm_t *cm, kvp_rdma_event_t *event_out);
kvp_err_t nic_listen(kvp_rdma_cm_t *cm, const struct sockaddr_storage *at, kvp_rdma_id_t **id_out, uint16_t *port_out);
kvp_err_t nic_connect(kvp_rdma_cm_t *cm, const struct sockaddr_storage *to, const struct sockaddr_storage *from,
                      kvp_rdma_id_t **id_out);
kvp_err_t nic_qp_make(kvp_rdma_id_t *base, const kvp_rdma_caps_t *caps);
kvp_err_t nic_ask(kvp_rdma_id_t *base, const void *data, size_t len);
kvp_err_t nic_accept(kvp_rdma_id_t *base, const void *data, size_t len);
kvp_err_t nic_refuse(kvp_rdma_id_t *base, const void *data, size_t len);
void nic_id_close(kvp_rdma_id_t *base);

/* Of model_nic_wire.c: wire_act lets one thing happen to what this id has under way. */
bool wire_act(nic_id_t *q);
/* wire_queue takes one request that was found well-formed. */
kvp_err_t wire_queue(nic_id_t *q, const kvp_rdma_wr_t *wr, uint64_t len);
/* wire_leave: q closes or dies. Afterwards nothing of q touches its memory, and nothing lands by this connection. */
void wire_leave(nic_id_t *q);
/* wire_dereg: afterwards nothing lands by that registration. */
void wire_dereg(const nic_reg_t *reg);
void wire_fd_set(int fd);
void wire_fd_clear(int fd);

#endif
