/* SPDX-License-Identifier: Apache-2.0
 * A fetcher is a session without cached locations. An object is one move: the payload, the rest of the descriptor and
 * the key, and after these the descriptor's first line. */
#include "client/data/fetch.h"

#include "client/data/transfer.h"

#include <stdlib.h>

struct kvp_fetcher {
    kvp_counters_t counters;
    kvp_scratch_pool_t scratches;
    kvp_mastersession_t *session;
};

static void
close_fetcher(kvp_fetcher_t *f)
{
    if (f->session != NULL) {
        kvp_session_stop(f->session);
        kvp_session_destroy(f->session);
    }
    kvp_scratch_pool_fini(&f->scratches);
    free(f);
}

static kvp_err_t
open_fetcher(const kvp_fetch_conf_t *from, uint64_t deadline_ns, kvp_fetcher_t **fetcher_out)
{
    kvp_fetcher_t *f = calloc(1, sizeof *f);
    kvp_session_conf_t conf = {
        .masters = from->masters, .cluster = from->cluster, .peers = {.name = from->name, .host_id = from->host_id}};
    kvp_err_t err;

    if (f == NULL) return KVP_NOMEM;
    kvp_scratch_pool_init(&f->scratches);
    conf.peers.counters = &f->counters;
    while (conf.peers.transports_n < from->transports_n && conf.peers.transports_n < KVP_TRANSPORTS_MAX) {
        conf.peers.transports[conf.peers.transports_n] = from->transports[conf.peers.transports_n];
        conf.peers.transports_n++;
    }
    err = kvp_session_start(&conf, deadline_ns, &f->session);
    if (err != KVP_OK) {
        close_fetcher(f);
        return err;
    }
    *fetcher_out = f;
    return KVP_OK;
}

static void
stop_fetcher(kvp_fetcher_t *f)
{
    kvp_session_stop(f->session);
}

static void
begin_move(kvp_move_t *mv, kvp_span_t *span, kvp_iov_t *iov, kvp_fetch_t *fetch, uint32_t item)
{
    const kvp_wire_copy_t *rec = &fetch->rec;

    *iov = (kvp_iov_t){fetch->payload, rec->len};
    *span = (kvp_span_t){.iov = iov, .iov_n = 1, .len = rec->len};
    *mv = (kvp_move_t){.kind = KVP_MOVE_READ_WHOLE,
                       .item = item,
                       .loc = {.segment_id = rec->segment_id,
                               .chunk = rec->chunk,
                               .slot = rec->slot,
                               .key_off = rec->key_off,
                               .offset = rec->offset,
                               .generation = rec->generation},
                       .len = rec->len,
                       .key = fetch->key,
                       .key_len = rec->key_len,
                       .flags = rec->sum == 0 ? KVP_READ_SUM | KVP_READ_NO_SUM : KVP_READ_SUM};
}

static void
end_move(const kvp_move_t *mv, kvp_fetch_t *fetch)
{
    /* PROTO: the source has no such place, because the segment id belongs to another node's memory now */
    fetch->err = mv->err == KVP_CORRUPT || mv->err == KVP_PROTO ? KVP_STALE : mv->err;
    fetch->desc = mv->desc;
    fetch->sum = mv->sum;
}

static void
read_objects(kvp_fetcher_t *f, kvp_fetch_t *const *fetches, uint32_t n, uint64_t deadline_ns)
{
    kvp_scratch_t *scratch = kvp_scratch_take(&f->scratches);
    kvp_move_t *moves = scratch == NULL ? NULL : kvp_scratch_alloc(scratch, n, sizeof *moves);
    kvp_span_t *spans = moves == NULL ? NULL : kvp_scratch_alloc(scratch, n, sizeof *spans);
    kvp_iov_t *iovs = spans == NULL ? NULL : kvp_scratch_alloc(scratch, n, sizeof *iovs);
    kvp_link_t *link = NULL;
    kvp_err_t err = iovs == NULL ? KVP_NOMEM : kvp_session_hold(f->session, deadline_ns, &link);

    if (err == KVP_OK) {
        const kvp_transfer_t transfer = {.session = f->session,
                                         .peers = link->peers,
                                         .scratch = scratch,
                                         .spans = spans,
                                         .deadline_ns = deadline_ns,
                                         .others = 1}; /* the master can name another target */

        for (uint32_t i = 0; i < n; i++)
            begin_move(&moves[i], &spans[i], &iovs[i], fetches[i], i);
        kvp_transfer_run(&transfer, moves, n);
        kvp_session_rele(f->session, link);
    }
    for (uint32_t i = 0; i < n; i++)
        if (err == KVP_OK)
            end_move(&moves[i], fetches[i]);
        else
            fetches[i]->err = err;
    if (scratch != NULL) kvp_scratch_rele(&f->scratches, scratch);
}

const kvp_fetch_ops_t kvp_fetch_ops = {
    .open = open_fetcher, .read = read_objects, .stop = stop_fetcher, .close = close_fetcher};
