/* SPDX-License-Identifier: Apache-2.0
 * What happens to requests of the model NIC between post and completion: departure, pieces that land,
 * acknowledgements, failures. Each wire_act does one such thing, chosen by chance among those that verbs allow now. */
#include "tests/transport/model_nic_priv.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CODE_LOCAL_PROTECTION 4u /* as libibverbs counts them */

#define sq_msg(node) kvp_list_entry(node, nic_msg_t, sq_link)
#define land_msg(node) kvp_list_entry(node, nic_msg_t, land_link)

void
wire_fd_set(int fd)
{
    uint64_t one = 1;

    if (fd >= 0 && write(fd, &one, sizeof one) != sizeof one) kvp_panic("model nic: eventfd");
}

void
wire_fd_clear(int fd)
{
    uint64_t n;

    if (fd >= 0 && read(fd, &n, sizeof n) < 0) return; /* was not set */
}

static void
msg_free_if_over(nic_msg_t *m)
{
    if (!kvp_list_is_empty(&m->sq_link) || !kvp_list_is_empty(&m->land_link)) return;
    free(m->bytes);
    free(m);
}

static void
unland(nic_msg_t *m)
{
    kvp_list_del(&m->land_link);
    msg_free_if_over(m);
}

/* Memory */

static nic_reg_t *
reg_by_key(nic_dev_t *dev, uint32_t key)
{
    nic_reg_t *reg = dev->regs[(key >> 1) % REGS_MAX];

    if (reg == NULL || reg->base.is_lost) return NULL;
    return reg->base.lkey == key || reg->base.rkey == key ? reg : NULL;
}

static bool
may_access(nic_dev_t *dev, uint32_t key, bool is_remote, kvp_rdma_access_t want, uint64_t addr, uint64_t len)
{
    const nic_reg_t *reg = reg_by_key(dev, key);
    uint64_t off;

    if (len == 0) return true;
    if (reg == NULL || (key == reg->base.rkey) != is_remote || reg->access < want) return false;
    off = addr - (uintptr_t)reg->addr;
    return off <= reg->len && len <= reg->len - off;
}

static bool
may_access_remote(const nic_id_t *owner, const nic_msg_t *m)
{
    bool is_read = (m->flags & KVP_RDMA_WR_READ) != 0;

    return may_access(owner->dev, m->rkey, true, is_read ? KVP_RDMA_READABLE : KVP_RDMA_WRITABLE, m->raddr, m->len);
}

/* Where the adapter finds local memory of a registration; NULL: it is there no more. */
static uint8_t *
local_of(const nic_reg_t *reg, uint64_t addr, uint64_t len)
{
    struct stat is;

    if (reg->is_peer) return model_nic.conf.peer_memory((const void *)(uintptr_t)addr, len);
    if (reg->map == NULL) return (uint8_t *)(uintptr_t)addr;
    if (fstat(reg->dmabuf_fd, &is) != 0 || is.st_size == 0) return NULL; /* revoked */
    return reg->map + (addr - (uintptr_t)reg->addr);
}

/* Of a piece that may be accessed. */
static uint8_t *
local_at(const nic_msg_t *m, const kvp_rdma_sge_t *sge)
{
    return local_of(reg_by_key(m->dev, sge->lkey), sge->addr, sge->len);
}

static bool
may_access_local(const nic_msg_t *m)
{
    if ((m->flags & KVP_RDMA_WR_INLINE) != 0) return true;
    for (uint32_t i = 0; i < m->sge_n; i++) {
        const kvp_rdma_sge_t *sge = &m->sge[i];

        if (!may_access(m->dev, sge->lkey, false, KVP_RDMA_LOCAL, sge->addr, sge->len)) return false;
        if (sge->len > 0 && local_at(m, sge) == NULL) return false;
    }
    return true;
}

/* Other threads look at registered memory meanwhile, by atomic words. */
static void
store_remote(uint8_t *to, const uint8_t *from, size_t n)
{
    while (n > 0) {
        if ((uintptr_t)to % 8 == 0 && n >= 8) {
            uint64_t word;

            memcpy(&word, from, 8);
            __atomic_store_n((uint64_t *)to, word, __ATOMIC_RELEASE);
            to += 8;
            from += 8;
            n -= 8;
        } else {
            __atomic_store_n(to++, *from++, __ATOMIC_RELEASE);
            n--;
        }
    }
}

static void
load_remote(uint8_t *to, const uint8_t *from, size_t n)
{
    while (n > 0) {
        if ((uintptr_t)from % 8 == 0 && n >= 8) {
            uint64_t word = __atomic_load_n((const uint64_t *)from, __ATOMIC_ACQUIRE);

            memcpy(to, &word, 8);
            to += 8;
            from += 8;
            n -= 8;
        } else {
            *to++ = __atomic_load_n(from++, __ATOMIC_ACQUIRE);
            n--;
        }
    }
}

static void
gather(const nic_msg_t *m, uint8_t *to)
{
    bool is_inline = (m->flags & KVP_RDMA_WR_INLINE) != 0;

    for (uint32_t i = 0; i < m->sge_n; i++) {
        const kvp_rdma_sge_t *sge = &m->sge[i];

        if (sge->len > 0) memcpy(to, is_inline ? (const uint8_t *)(uintptr_t)sge->addr : local_at(m, sge), sge->len);
        to += m->sge[i].len;
    }
}

static void
scatter(const nic_msg_t *m, uint64_t off, const uint8_t *from, size_t n)
{
    for (uint32_t i = 0; n > 0; i++) {
        size_t here;

        if (off >= m->sge[i].len) {
            off -= m->sge[i].len;
            continue;
        }
        here = (size_t)kvp_min_u64(n, m->sge[i].len - off);
        memcpy(local_at(m, &m->sge[i]) + off, from, here);
        from += here;
        n -= here;
        off = 0;
    }
}

/* Pieces */

static uint64_t
gcd(uint64_t a, uint64_t b)
{
    while (b != 0) {
        uint64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

static void
shuffle_pieces(nic_msg_t *m)
{
    m->pieces_n = m->len == 0 ? 0 : (m->raddr + m->len - 1) / PIECE - m->raddr / PIECE + 1;
    m->pieces_left = m->pieces_n;
    m->stride = 1;
    if (m->pieces_n < 2) return;
    m->piece_at = nic_below(m->pieces_n);
    do
        m->stride = 1 + nic_below(m->pieces_n - 1);
    while (gcd(m->stride, m->pieces_n) != 1);
}

static void
move_piece(nic_msg_t *m)
{
    uint64_t line = m->raddr / PIECE + m->piece_at;
    uint64_t from = kvp_max_u64(line * PIECE, m->raddr);
    size_t n = (size_t)(kvp_min_u64((line + 1) * PIECE, m->raddr + m->len) - from);
    uint64_t off = from - m->raddr;

    if ((m->flags & KVP_RDMA_WR_READ) != 0) {
        uint8_t piece[PIECE];

        load_remote(piece, (const uint8_t *)(uintptr_t)from, n);
        scatter(m, off, piece, n);
    } else {
        store_remote((uint8_t *)(uintptr_t)from, m->bytes + off, n);
    }
    m->piece_at = (m->piece_at + m->stride) % m->pieces_n;
    m->pieces_left--;
}

static void
move_all(nic_msg_t *m)
{
    while (m->pieces_left > 0)
        move_piece(m);
}

/* A large message takes about as many steps as one of sixteen pieces. */
static void
move_some(nic_msg_t *m)
{
    for (uint64_t n = 1 + nic_below(1 + m->pieces_n / 8); n > 0 && m->pieces_left > 0; n--)
        move_piece(m);
}

/* What happens */

static bool
is_reachable(const nic_id_t *q)
{
    return q->peer != NULL && !model_nic.is_down[q->dev->index][q->peer->dev->index];
}

static void
fail(nic_id_t *q, nic_msg_t *m, kvp_rdma_wc_status_t status, uint32_t code)
{
    m->is_done = true;
    m->status = status;
    m->code = code;
    q->fail_seq = kvp_min_u64(q->fail_seq, m->seq);
}

static nic_msg_t *
first_unsent(const nic_id_t *q)
{
    kvp_list_foreach (node, &q->sq)
        if (!sq_msg(node)->is_sent) return sq_msg(node);
    return NULL;
}

static bool
is_forgotten(void)
{
    return model_nic.conf.forgets_per_mille > 0 && nic_below(1000) < model_nic.conf.forgets_per_mille;
}

static bool
depart(nic_id_t *q)
{
    nic_msg_t *m = first_unsent(q);
    bool is_read;

    if (m == NULL || m->seq > q->fail_seq || q->is_error || !is_reachable(q)) return false;
    is_read = (m->flags & KVP_RDMA_WR_READ) != 0;
    if ((m->flags & KVP_RDMA_WR_FENCE) != 0 && q->reads_open > 0) return false;
    if (is_read && q->reads_open >= q->dev->base.info.max_reads) return false;
    m->is_sent = true;
    if (!may_access_local(m)) {
        fail(q, m, KVP_RDMA_WC_NO_MEMORY, CODE_LOCAL_PROTECTION);
        return true;
    }
    if (!may_access_remote(q->peer, m)) {
        fail(q, m, KVP_RDMA_WC_NO_ACCESS, 0);
        return true;
    }
    shuffle_pieces(m);
    if (is_read) {
        m->is_done = m->len == 0 || is_forgotten();
        q->reads_open += !m->is_done;
    } else if (m->len > 0) {
        if (m->bytes == NULL) { /* else inline */
            m->bytes = malloc(m->len);
            if (m->bytes == NULL) kvp_panic("model nic: no memory");
            gather(m, m->bytes);
        }
        kvp_list_add_tail(&q->landing, &m->land_link);
    }
    return true;
}

static nic_msg_t *
pick_landing(const kvp_list_t *list)
{
    uint64_t n = 0;

    if (kvp_list_is_empty(list)) return NULL;
    if (!model_nic.conf.is_relaxed) return land_msg(list->next);
    kvp_list_foreach (node, list)
        n++;
    n = nic_below(n);
    kvp_list_foreach (node, list)
        if (n-- == 0) return land_msg(node);
    return NULL;
}

static bool
land(kvp_list_t *list)
{
    nic_msg_t *m = pick_landing(list);

    if (m == NULL) return false;
    move_some(m);
    if (m->pieces_left == 0) unland(m);
    return true;
}

/* Acknowledges up to some WRITE: an answer speaks for all before it. */
static bool
acknowledge(nic_id_t *q)
{
    nic_msg_t *some = NULL;
    uint64_t n = 0;

    if (!is_reachable(q)) return false;
    kvp_list_foreach (node, &q->sq) {
        nic_msg_t *m = sq_msg(node);

        if (!m->is_sent || m->seq >= q->fail_seq) break;
        if ((m->flags & KVP_RDMA_WR_READ) == 0 && !m->is_done && nic_below(++n) == 0) some = m;
    }
    if (some == NULL) return false;
    kvp_list_foreach (node, &q->sq) {
        nic_msg_t *m = sq_msg(node);

        if ((m->flags & KVP_RDMA_WR_READ) == 0 && !m->is_done) {
            m->is_done = true;
            m->is_acked = true;
        }
        if (m == some) break;
    }
    return true;
}

static nic_msg_t *
some_open_read(const nic_id_t *q)
{
    nic_msg_t *some = NULL;
    uint64_t n = 0;

    kvp_list_foreach (node, &q->sq) {
        nic_msg_t *m = sq_msg(node);

        if (!m->is_sent || m->seq >= q->fail_seq) break;
        if ((m->flags & KVP_RDMA_WR_READ) != 0 && !m->is_done && nic_below(++n) == 0) some = m;
    }
    return some;
}

static bool
read_some(nic_id_t *q)
{
    nic_msg_t *m = is_reachable(q) ? some_open_read(q) : NULL;

    if (m == NULL) return false;
    kvp_list_foreach_safe (node, tmp, &q->landing) {
        if (land_msg(node)->seq > m->seq) break;
        move_all(land_msg(node));
        unland(land_msg(node));
    }
    if (!may_access_remote(q->peer, m)) {
        fail(q, m, KVP_RDMA_WC_NO_ACCESS, 0);
    } else if (!may_access_local(m)) {
        fail(q, m, KVP_RDMA_WC_NO_MEMORY, CODE_LOCAL_PROTECTION);
    } else {
        move_some(m);
        m->is_done = m->pieces_left == 0;
    }
    q->reads_open -= m->is_done;
    return true;
}

static void
complete(nic_id_t *q, const nic_msg_t *m, kvp_rdma_wc_status_t status)
{
    nic_cqe_t *e = &q->cq[(q->cq_head + q->cq_n++) % q->caps.sends];

    *e = (nic_cqe_t){.wc = {.id = m->id, .status = status, .code = m->code}, .covers = q->retired};
    q->retired = 0;
    if (q->is_armed) wire_fd_set(q->base.cq_fd);
    q->is_armed = false;
}

static bool
retire_one(nic_id_t *q)
{
    nic_msg_t *m;
    kvp_rdma_wc_status_t status;

    if (kvp_list_is_empty(&q->sq)) return false;
    m = sq_msg(q->sq.next);
    if (!m->is_done && !q->is_error) return false;
    status = q->is_error ? KVP_RDMA_WC_FLUSHED : m->status;
    q->retired++;
    if (status != KVP_RDMA_WC_OK) q->is_error = true;
    if (status != KVP_RDMA_WC_OK || (m->flags & KVP_RDMA_WR_SIGNALED) != 0) complete(q, m, status);
    kvp_list_del(&m->sq_link);
    msg_free_if_over(m);
    /* An adapter that refused an access is done with the connection in both directions. */
    if (status == KVP_RDMA_WC_NO_ACCESS && q->peer != NULL) q->peer->is_error = true;
    return true;
}

static bool
retire(nic_id_t *q)
{
    bool is_any = false;

    for (uint64_t n = 1 + nic_below(4); n > 0 && retire_one(q); n--)
        is_any = true;
    return is_any;
}

static nic_msg_t *
first_waiting(const nic_id_t *q)
{
    kvp_list_foreach (node, &q->sq)
        if (!sq_msg(node)->is_done) return sq_msg(node)->seq < q->fail_seq ? sq_msg(node) : NULL;
    return NULL;
}

/* A request that gets no answer is tried again some times. */
static bool
retry(nic_id_t *q)
{
    nic_msg_t *m = first_waiting(q);

    if (is_reachable(q)) q->ticks = 0;
    if (is_reachable(q) || m == NULL || q->is_error) return false;
    if (++q->ticks < model_nic.conf.retry_steps) return true;
    /* Whoever was told that the peer is gone may have ended its queue pair before the retries did. */
    fail(q, m, q->peer == NULL && nic_coin() ? KVP_RDMA_WC_FLUSHED : KVP_RDMA_WC_NO_ANSWER, 0);
    return true;
}

static bool
land_own(nic_id_t *q)
{
    return land(&q->landing);
}

static bool
land_orphan(nic_id_t *q)
{
    return land(&q->orphans);
}

bool
wire_act(nic_id_t *q)
{
    static bool (*const acts[])(nic_id_t *) = {depart, land_own, acknowledge, read_some, retire, retry, land_orphan};
    uint32_t sum = 0;
    uint32_t at = 0;
    uint32_t pick;

    if (!q->has_qp || q->state == ID_DEAD) return false;
    if (q->is_silent) return land_own(q) || land_orphan(q);
    for (size_t i = 0; i < KVP_ARRAY_LEN(acts); i++)
        sum += model_nic.weights[i];
    pick = (uint32_t)nic_below(sum);
    while (pick >= model_nic.weights[at])
        pick -= model_nic.weights[at++];
    for (size_t i = 0; i < KVP_ARRAY_LEN(acts); i++)
        if (acts[(at + i) % KVP_ARRAY_LEN(acts)](q)) return true;
    return false;
}

kvp_err_t
wire_queue(nic_id_t *q, const kvp_rdma_wr_t *wr, uint64_t len)
{
    nic_msg_t *m = calloc(1, sizeof *m);

    if (m == NULL) return KVP_NOMEM;
    m->dev = q->dev;
    m->id = wr->id;
    m->flags = wr->flags;
    m->sge_n = wr->sge_n;
    m->len = len;
    m->raddr = wr->raddr;
    m->rkey = wr->rkey;
    m->seq = ++q->seq;
    kvp_list_init(&m->land_link);
    for (uint32_t i = 0; i < wr->sge_n; i++)
        m->sge[i] = wr->sge[i];
    if ((wr->flags & KVP_RDMA_WR_INLINE) != 0 && len > 0) {
        m->bytes = malloc(len);
        if (m->bytes == NULL) {
            free(m);
            return KVP_NOMEM;
        }
        gather(m, m->bytes);
    }
    kvp_list_add_tail(&q->sq, &m->sq_link);
    q->used++;
    return KVP_OK;
}

/* Ends */

static void
drop_landing(kvp_list_t *list)
{
    kvp_list_foreach_safe (node, tmp, list)
        unland(land_msg(node));
}

/* The responder's side ends: what was acknowledged lands now, of the rest some, in order, perhaps a part of one, and no
 * more. */
static void
settle_landing(kvp_list_t *list)
{
    kvp_list_foreach (node, list) {
        nic_msg_t *m = land_msg(node);

        if (m->is_acked || nic_coin()) {
            move_all(m);
        } else {
            for (uint64_t n = nic_below(m->pieces_left + 1); n > 0; n--)
                move_piece(m);
            break;
        }
    }
    drop_landing(list);
}

/* The requester's side ends: what was acknowledged has arrived; of the rest some is lost on its way. */
static void
orphan_landing(kvp_list_t *list, kvp_list_t *orphans)
{
    bool is_cut = false;

    kvp_list_foreach_safe (node, tmp, list) {
        nic_msg_t *m = land_msg(node);

        if (is_cut) {
            unland(m);
            continue;
        }
        if (!m->is_acked && nic_below(4) == 0) {
            is_cut = true;
            m->pieces_left = nic_below(m->pieces_left + 1);
        }
        if (m->pieces_left == 0) {
            unland(m);
            continue;
        }
        kvp_list_del(&m->land_link);
        kvp_list_add_tail(orphans, &m->land_link);
    }
}

void
wire_leave(nic_id_t *q)
{
    if (q->peer != NULL) {
        settle_landing(&q->peer->landing);
        orphan_landing(&q->landing, &q->peer->orphans);
    }
    settle_landing(&q->orphans);
    drop_landing(&q->landing);
    kvp_list_foreach_safe (node, tmp, &q->sq) {
        nic_msg_t *m = sq_msg(node);

        kvp_list_del(&m->sq_link);
        msg_free_if_over(m);
    }
    q->reads_open = 0;
}

/* Up to the last one of that registration, in order; the first that is refused ends the list. */
static void
dereg_landing(nic_id_t *requester, kvp_list_t *list, const nic_reg_t *reg)
{
    const nic_msg_t *last = NULL;
    bool is_last = false;
    bool is_refused = false;

    kvp_list_foreach (node, list)
        if (land_msg(node)->rkey == reg->base.rkey) last = land_msg(node);
    if (last == NULL) return;
    kvp_list_foreach_safe (node, tmp, list) {
        nic_msg_t *m = land_msg(node);

        is_last = is_last || m == last;
        if (!is_refused && m->rkey == reg->base.rkey && !m->is_acked && nic_coin()) {
            is_refused = true;
            for (uint64_t n = nic_below(m->pieces_left + 1); n > 0; n--)
                move_piece(m);
            if (requester != NULL) fail(requester, m, KVP_RDMA_WC_NO_ACCESS, 0);
        } else if (!is_refused) {
            move_all(m);
        }
        unland(m);
        if (is_last && !is_refused) return;
    }
}

void
wire_dereg(const nic_reg_t *reg)
{
    kvp_list_foreach (node, &model_nic.ids) {
        nic_id_t *q = kvp_list_entry(node, nic_id_t, link);

        if (q->dev == NULL || &q->dev->base != reg->base.dev) continue;
        if (q->peer != NULL) dereg_landing(q->peer, &q->peer->landing, reg);
        dereg_landing(NULL, &q->orphans, reg);
    }
}
