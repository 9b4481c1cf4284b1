/* SPDX-License-Identifier: Apache-2.0
 * Bookkeeping of an answer on the serving side: how much was sent, and which bytes come next. Works on the buffers of
 * a connection (conn.h), and makes no system call. Runs in the lane's thread, under the lane's lock. */
#include "transport/tcp/conn.h"

/* Returns how many bytes of an answer belong to a successful READ: its data and, if requested, its checksum. */
static uint64_t
whole_bytes(const kvp_tcp_read_t *r)
{
    return r->len + (r->has_sum ? sizeof(uint64_t) : 0);
}

void
kvp_tcp_answer_begin(kvp_tcp_conn_t *conn)
{
    kvp_tcp_work_t *w = conn->work;
    uint64_t body = 0;

    w->head_len = (uint32_t)kvp_data_rep_head_bytes(w->ops_n);
    w->status[w->ops_n] = 0; /* the statuses are padded to a multiple of 8 bytes, with zeroes */
    if (conn->dec.is_read)
        for (uint32_t i = 0; i < w->ops_n; i++)
            if (w->status[i] == KVP_OK) body += whole_bytes(&w->reads[i]);
    w->rep = (kvp_data_rep_t){
        .magic = KVP_DATA_MAGIC,
        .n_ops = (uint16_t)w->ops_n,
        .seq = conn->dec.req.seq,
        .bytes = w->head_len - sizeof w->rep + body,
    };
    w->head_sent = w->op = 0;
    w->off = 0;
    w->stage_len = w->staged_n = 0;
}

static bool
gather_add(kvp_tcp_gather_t *g, const void *at, uint64_t len)
{
    struct iovec *last = g->n > 0 ? &g->iov[g->n - 1] : NULL;

    len = kvp_min_u64(len, KVP_TCP_CALL_BYTES - g->bytes);
    g->bytes += len;
    if (last != NULL && (const uint8_t *)last->iov_base + last->iov_len == at)
        last->iov_len += len;
    else
        g->iov[g->n++] = (struct iovec){.iov_base = (void *)at, .iov_len = len};
    return g->n < KVP_TCP_GATHER_IOVS && g->bytes < KVP_TCP_CALL_BYTES;
}

/* Returns the address from which a READ's bytes are sent. Small aligned READs are first loaded word by word into the
 * staging buffer; other READs are sent straight from exported memory. NULL = the staging buffer is full. */
static const uint8_t *
source_of(kvp_tcp_work_t *w, kvp_tcp_read_t *r)
{
    if (!kvp_words_fit(r->at, r->len)) return r->at;
    if (r->staged_at == KVP_TCP_NOT_STAGED) {
        if (r->len > sizeof w->stage - w->stage_len) return NULL;
        kvp_words_load(w->stage + w->stage_len, r->at, (size_t)r->len);
        r->staged_at = w->stage_len;
        w->stage_len += (uint32_t)r->len;
        w->staged_n++;
    }
    return w->stage + r->staged_at;
}

/* Gathers an answer's next bytes, for one send call. Gathering stops before a READ with AFTER_PRIOR until the kernel
 * has taken all earlier bytes that are sent straight from memory; staged bytes were loaded already. Gathering also
 * stops after a READ with a checksum, because the checksum is complete only after all the READ's bytes were sent. */
void
kvp_tcp_answer_gather(kvp_tcp_conn_t *conn, kvp_tcp_gather_t *g)
{
    kvp_tcp_work_t *w = conn->work;
    bool has_direct = false;
    bool has_room = true;

    g->n = g->bytes = 0;
    if (w->staged_n == 0) w->stage_len = 0;
    if (w->head_sent < w->head_len)
        has_room = gather_add(g, (const uint8_t *)&w->rep + w->head_sent, w->head_len - w->head_sent);
    if (!conn->dec.is_read) return;
    for (uint32_t i = w->op; has_room && i < w->ops_n; i++) {
        kvp_tcp_read_t *r = &w->reads[i];
        uint64_t off = i == w->op ? w->off : 0;
        const uint8_t *from;

        if (w->status[i] != KVP_OK) continue;
        if (off >= r->len) { /* all data of the READ was sent: its checksum is left */
            has_room = gather_add(g, (const uint8_t *)&w->sum + (off - r->len), whole_bytes(r) - off);
            continue;
        }
        if (r->is_after && has_direct && r->staged_at == KVP_TCP_NOT_STAGED) break;
        from = source_of(w, r);
        if (from == NULL) break;
        has_direct |= from == r->at;
        has_room = gather_add(g, from + off, r->len - off);
        if (r->has_sum) break;
    }
}

/* Adds n sent bytes of a READ, from offset off on, to its checksum. The kernel has copied them, and the checksum is of
 * the memory as it is now: if the memory changed in between, the reader finds that the checksum does not match. */
static void
sum_sent(kvp_tcp_work_t *w, const kvp_tcp_read_t *r, uint64_t off, uint64_t n)
{
    const uint8_t *from = r->staged_at == KVP_TCP_NOT_STAGED ? r->at : w->stage + r->staged_at;

    if (n == r->len) {
        w->sum = kvp_sum(from, n);
        return;
    }
    if (off == 0) kvp_sum_reset(w->summing);
    kvp_sum_update(w->summing, from + off, n);
    if (off + n == r->len) w->sum = kvp_sum_digest(w->summing);
}

void
kvp_tcp_answer_took(kvp_tcp_conn_t *conn, size_t n)
{
    kvp_tcp_work_t *w = conn->work;
    uint32_t head = (uint32_t)kvp_min_u64(n, w->head_len - w->head_sent);

    w->head_sent += head;
    n -= head;
    while (n > 0) {
        const kvp_tcp_read_t *r = &w->reads[w->op];
        bool is_sent = w->status[w->op] == KVP_OK;
        uint64_t more = is_sent ? kvp_min_u64(n, whole_bytes(r) - w->off) : 0;

        if (is_sent && r->has_sum && w->off < r->len) sum_sent(w, r, w->off, kvp_min_u64(more, r->len - w->off));
        n -= more;
        w->off += more;
        if (is_sent && w->off < whole_bytes(r)) return;
        if (is_sent && r->staged_at != KVP_TCP_NOT_STAGED) w->staged_n--;
        w->op++;
        w->off = 0;
        conn->op_serial++;
    }
}

bool
kvp_tcp_answer_is_over(const kvp_tcp_conn_t *conn)
{
    const kvp_tcp_work_t *w = conn->work;

    if (w->head_sent < w->head_len) return false;
    if (!conn->dec.is_read) return true;
    for (uint32_t i = w->op; i < w->ops_n; i++)
        if (w->status[i] == KVP_OK) return false;
    return true;
}
