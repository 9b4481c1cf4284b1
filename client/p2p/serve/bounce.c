/* SPDX-License-Identifier: Apache-2.0 */
#include "client/p2p/serve/bounce.h"

#include "common/clock.h"
#include "common/log.h"

#include <stdlib.h>
#include <string.h>

#define TURN_BYTES (1u << 20) /* copied at a time, for so long is a range held */
#define TURN_PIECES 64u

void
kvp_p2p_bounces_init(kvp_p2p_bounces_t *bounces, kvp_p2p_ranges_t *ranges, bool is_private)
{
    bounces->ranges = ranges;
    bounces->is_private = is_private;
    kvp_bounces_init(&bounces->memory, KVP_P2P_BOUNCES_MAX, 1);
    kvp_list_init(&bounces->idle);
}

static void
bounce_destroy(kvp_p2p_bounces_t *bounces, kvp_p2p_bounce_t *bounce)
{
    if (kvp_p2p_ranges_del(bounces->ranges, kvp_bounce_part(bounce->bounce, 0)) != KVP_OK)
        kvp_log_error("client", "a bounce buffer was not registered any more");
    kvp_bounce_rele(&bounces->memory, bounce->bounce);
    free(bounce);
}

void
kvp_p2p_bounces_fini(kvp_p2p_bounces_t *bounces)
{
    while (!kvp_list_is_empty(&bounces->idle)) {
        kvp_p2p_bounce_t *bounce = kvp_list_first(&bounces->idle, kvp_p2p_bounce_t, link);

        kvp_list_del(&bounce->link);
        bounce_destroy(bounces, bounce);
    }
    kvp_bounces_fini(&bounces->memory);
}

static kvp_err_t
bounce_create(kvp_p2p_bounces_t *bounces, kvp_p2p_bounce_t **bounce_out)
{
    kvp_p2p_bounce_t *bounce;
    kvp_devmem_t mem;
    kvp_err_t err;

    if (!kvp_p2p_ranges_device(bounces->ranges, &mem)) return KVP_NOTSUP;
    bounce = calloc(1, sizeof *bounce);
    if (bounce == NULL) return KVP_NOMEM;
    kvp_list_init(&bounce->link);
    bounce->token = kvp_random_u64() | 1;
    err = kvp_bounce_take(&bounces->memory, &mem, kvp_now_ns(), &bounce->bounce);
    if (err == KVP_OK) {
        memset(kvp_bounce_part(bounce->bounce, 0), 0,
               KVP_BOUNCE_PART_BYTES); /* another peer's bytes may be left in it */
        err = kvp_p2p_ranges_add(bounces->ranges, kvp_bounce_part(bounce->bounce, 0), KVP_BOUNCE_PART_BYTES,
                                 bounce->token, true);
        if (err != KVP_OK) kvp_bounce_rele(&bounces->memory, bounce->bounce);
    }
    if (err != KVP_OK) {
        free(bounce);
        return err == KVP_DEADLINE ? KVP_BUSY : err;
    }
    *bounce_out = bounce;
    return KVP_OK;
}

kvp_err_t
kvp_p2p_bounces_take(kvp_p2p_bounces_t *bounces, kvp_p2p_bounce_t **bounce_out)
{
    if (kvp_list_is_empty(&bounces->idle)) return bounce_create(bounces, bounce_out);
    *bounce_out = kvp_list_first(&bounces->idle, kvp_p2p_bounce_t, link);
    kvp_list_del(&(*bounce_out)->link);
    return KVP_OK;
}

void
kvp_p2p_bounces_give(kvp_p2p_bounces_t *bounces, kvp_p2p_bounce_t *bounce, bool is_quiet)
{
    if (is_quiet && !bounces->is_private)
        kvp_list_add_head(&bounces->idle, &bounce->link);
    else
        bounce_destroy(bounces, bounce);
}

kvp_peer_at_t
kvp_p2p_bounce_at(const kvp_p2p_bounce_t *bounce)
{
    return (kvp_peer_at_t){
        .addr = (uintptr_t)kvp_bounce_part(bounce->bounce, 0), .len = KVP_BOUNCE_PART_BYTES, .token = bounce->token};
}

bool
kvp_p2p_bounce_takes(const kvp_peer_moves_t *moves)
{
    for (uint32_t i = 0; i < moves->n; i++)
        if (moves->pieces[i].len > KVP_BOUNCE_PART_BYTES ||
            moves->pieces[i].from > KVP_BOUNCE_PART_BYTES - moves->pieces[i].len)
            return false;
    return true;
}

/* Begins one copy; the range is held until it is over. */
static kvp_err_t
begin_copy(kvp_p2p_bounces_t *bounces, kvp_p2p_bounce_t *bounce, kvp_peer_move_t kind, const kvp_peer_piece_t *piece,
           kvp_reg_t **reg_out)
{
    kvp_peer_at_t at = {.addr = piece->addr, .len = piece->len, .token = piece->token};
    uint8_t *bounced = kvp_bounce_part(bounce->bounce, 0) + piece->from;
    void *device = (void *)(uintptr_t)piece->addr; /* NOLINT(performance-no-int-to-ptr): it lies in a range of ours */
    bool is_store = kind == KVP_PEER_STORE;
    kvp_reg_t *reg = kvp_p2p_ranges_hold(bounces->ranges, &at, true);

    *reg_out = reg;
    if (reg == NULL) return KVP_NOT_REGISTERED;
    return kvp_bounce_copy(bounce->bounce, kvp_reg_mem(reg), is_store ? device : bounced, is_store ? bounced : device,
                           (size_t)piece->len);
}

uint32_t
kvp_p2p_bounce_copy(kvp_p2p_bounces_t *bounces, kvp_p2p_bounce_t *bounce, const kvp_peer_moves_t *moves,
                    kvp_peer_moved_t *moved)
{
    kvp_reg_t *regs[TURN_PIECES];
    uint64_t bytes = 0;
    uint32_t n = 0;
    kvp_err_t err;

    while (n < moves->n && n < TURN_PIECES && bytes < TURN_BYTES) {
        moved[n].err = begin_copy(bounces, bounce, moves->kind, &moves->pieces[n], &regs[n]);
        bytes += moves->pieces[n++].len;
    }
    err = kvp_bounce_wait(bounce->bounce);
    for (uint32_t i = 0; i < n; i++) {
        if (moved[i].err == KVP_OK) moved[i].err = err;
        kvp_p2p_ranges_rele(bounces->ranges, regs[i]);
    }
    return n;
}
