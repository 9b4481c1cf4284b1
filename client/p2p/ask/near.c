/* SPDX-License-Identifier: Apache-2.0
 * Design notes. The peer is asked nothing: its cell says, after the copy, whether all of it lay in registered memory. Local memory that
 * nobody registered may not be there at all; copying from it here would end the process, so it is left to the kernel.
 */
#include "client/p2p/ask/near.h"

#include "client/transport/copy.h"
#include "common/log.h"

#include <unistd.h>

#define LOOK_BYTES (4u << 20) /* between looks at the clock, the peer and the cell */

/* ---- mapping */
static kvp_err_t
take_map(kvp_p2p_lane_t *lane, kvp_p2p_seen_t *seen, const kvp_p2p_map_key_t *key, uint64_t cell)
{
    kvp_p2p_told_t told = {.key = *key, .cell = cell};
    int fds[KVP_FRAMED_FDS];
    int n = kvp_framed_take_fds(&lane->io, fds, KVP_FRAMED_FDS);
    kvp_err_t err = KVP_PROTO;

    if (n == 2) {
        told.mem_fd = fds[0];
        told.words_fd = fds[1];
        err = kvp_p2p_maps_add(lane->conf->maps, &told, &seen->map);
    }
    for (int i = 0; i < n; i++)
        close(fds[i]);
    return err;
}

/* Whether it can be mapped is asked once. Where it cannot, it goes as all else. */
static kvp_err_t
need_map(kvp_p2p_lane_t *lane, kvp_p2p_seen_t *seen, uint64_t deadline_ns)
{
    kvp_p2p_map_key_t key = {.pid = lane->proc.pid, .peer = lane->peer, .token = seen->token, .len = seen->len};
    const void *records = NULL;
    kvp_err_t err;

    if (seen->is_asked) return KVP_OK;
    seen->is_asked = true;
    seen->map = kvp_p2p_maps_find(lane->conf->maps, &key);
    if (seen->map != NULL) return KVP_OK;
    if (lane->io.fds_in_n > 0) return KVP_PROTO; /* nobody asked for these */
    kvp_peer_map_encode(&lane->io.out, kvp_p2p_lane_id(lane), seen->token);
    err = kvp_p2p_lane_ask(lane, KVP_OP_PEER_MAP, 1, sizeof(uint64_t), deadline_ns, &records);
    if (err == KVP_OK) err = take_map(lane, seen, &key, *(const uint64_t *)records);
    if (err == KVP_LIMIT || err == KVP_SYS || err == KVP_NOMEM)
        kvp_log_debug("client", "memory of a peer is not mapped: %s", kvp_err_text(err));
    return err == KVP_NOTSUP || err == KVP_LIMIT || err == KVP_SYS || err == KVP_NOMEM ? KVP_OK : err;
}

/* ---- copying */
typedef struct {
    kvp_p2p_lane_t *lane;
    bool is_write;
    uint64_t deadline_ns;
    uint64_t whole; /* bytes, of all pieces that are copied here */
    uint64_t left; /* until the next look */
} copying_t;

static kvp_err_t
copy_piece(copying_t *c, const kvpool_p2p_op_t *op, const kvp_p2p_map_t *map, uint64_t map_off)
{
    uint8_t *there = kvp_p2p_map_addr(map) + map_off, *here = op->local;

    for (uint64_t off = 0, n; off < op->len; off += n) {
        n = kvp_min_u64(c->left, op->len - off);
        if (c->is_write)
            kvp_copy_part(there + off, here + off, n, c->whole);
        else
            kvp_copy_part(here + off, there + off, n, c->whole);
        c->left -= n;
        if (c->left > 0) continue;
        kvp_err_t err = kvp_p2p_lane_look(c->lane, c->deadline_ns);
        if (err != KVP_OK) return err;
        if (!kvp_p2p_lane_is_alive(c->lane)) return KVP_DISCONNECTED; /* the dead keep their word */
        if (!kvp_p2p_map_is_live(map)) return KVP_NO_SEGMENT;
        c->left = LOOK_BYTES;
    }
    return KVP_OK;
}

/* Once all was copied: it counts if none of the ranges went meanwhile, and there is somebody whose they are. */
static kvp_err_t
verify(const kvp_p2p_lane_t *lane, kvp_p2p_map_t *const *maps, uint32_t n)
{
    const kvp_p2p_map_t *last = NULL;

    kvp_copy_fence();
    for (uint32_t i = 0; i < n; i++) {
        if (maps[i] == NULL || maps[i] == last) continue;
        last = maps[i];
        if (!kvp_p2p_map_is_live(last)) return KVP_NO_SEGMENT;
    }
    return kvp_p2p_lane_is_alive(lane) ? KVP_OK : KVP_DISCONNECTED;
}

/* Which pieces are copied here: maps_out is NULL for those that are not. */
static kvp_err_t
choose(copying_t *c, const kvpool_p2p_op_t **ops, const kvp_peer_at_t *at, uint32_t n, kvp_p2p_map_t **maps_out)
{
    bool is_ours[KVP_PEER_BATCH_MAX];

    kvp_p2p_ranges_cover(c->lane->conf->ranges, ops, n, is_ours);
    for (uint32_t i = 0; i < n; i++) {
        kvp_p2p_seen_t *seen = kvp_p2p_lane_seen(c->lane, &at[i]);
        kvp_err_t err;

        maps_out[i] = NULL;
        if (seen == NULL) return KVP_NO_SEGMENT;
        if (!is_ours[i]) continue;
        err = need_map(c->lane, seen, c->deadline_ns);
        if (err != KVP_OK) return err;
        maps_out[i] = seen->map;
        if (seen->map != NULL) c->whole += ops[i]->len;
    }
    return KVP_OK;
}

kvp_err_t
kvp_p2p_near_move(kvp_p2p_lane_t *lane, bool is_write, const kvpool_p2p_op_t **ops, kvp_peer_at_t *at, uint32_t *n_io,
                  uint64_t deadline_ns, uint64_t *bytes_io)
{
    copying_t c = {.lane = lane, .is_write = is_write, .deadline_ns = deadline_ns, .left = LOOK_BYTES};
    kvp_p2p_map_t *maps[KVP_PEER_BATCH_MAX];
    uint32_t n = *n_io, kept = 0;
    kvp_err_t err = choose(&c, ops, at, n, maps);

    if (err != KVP_OK || c.whole == 0) return err;
    for (uint32_t i = 0; i < n && err == KVP_OK; i++)
        if (maps[i] != NULL) err = copy_piece(&c, ops[i], maps[i], at[i].addr - kvp_p2p_lane_seen(lane, &at[i])->base);
    if (err == KVP_OK) err = verify(lane, maps, n);
    if (err != KVP_OK) {
        kvp_copy_fence(); /* nothing of it lands behind the error */
        return err;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (maps[i] != NULL) continue;
        ops[kept] = ops[i];
        at[kept++] = at[i];
    }
    *n_io = kept;
    *bytes_io += c.whole;
    return KVP_OK;
}
