/* SPDX-License-Identifier: Apache-2.0 */
#include "client/p2p/serve/bounce.h"

#include "common/clock.h"
#include "common/log.h"

#include <stdlib.h>
#include <string.h>

#define TURN_BYTES (1u << 20) /* copied at a time, for so long is a range held */
#define TURN_PIECES 64u

void
kvp_p2p_stages_init(kvp_p2p_stages_t *stages, kvp_p2p_ranges_t *ranges, bool is_private)
{
    stages->ranges = ranges;
    stages->is_private = is_private;
    kvp_stages_init(&stages->memory, KVP_P2P_STAGES_MAX, 1);
    kvp_list_init(&stages->idle);
}

static void
stage_destroy(kvp_p2p_stages_t *stages, kvp_p2p_stage_t *stage)
{
    if (kvp_p2p_ranges_del(stages->ranges, kvp_stage_part(stage->stage, 0)) != KVP_OK)
        kvp_log_error("client", "a stage was not registered any more");
    kvp_stage_rele(&stages->memory, stage->stage);
    free(stage);
}

void
kvp_p2p_stages_fini(kvp_p2p_stages_t *stages)
{
    while (!kvp_list_is_empty(&stages->idle)) {
        kvp_p2p_stage_t *stage = kvp_list_first(&stages->idle, kvp_p2p_stage_t, link);

        kvp_list_del(&stage->link);
        stage_destroy(stages, stage);
    }
    kvp_stages_fini(&stages->memory);
}

static kvp_err_t
stage_create(kvp_p2p_stages_t *stages, kvp_p2p_stage_t **stage_out)
{
    kvp_p2p_stage_t *stage;
    kvp_devmem_t mem;
    kvp_err_t err;

    if (!kvp_p2p_ranges_device(stages->ranges, &mem)) return KVP_NOTSUP;
    stage = calloc(1, sizeof *stage);
    if (stage == NULL) return KVP_NOMEM;
    kvp_list_init(&stage->link);
    stage->token = kvp_random_u64() | 1;
    err = kvp_stage_take(&stages->memory, &mem, kvp_now_ns(), &stage->stage);
    if (err == KVP_OK) {
        memset(kvp_stage_part(stage->stage, 0), 0, KVP_STAGE_PART_BYTES); /* another peer's bytes may be left in it */
        err = kvp_p2p_ranges_add_stage(stages->ranges, kvp_stage_part(stage->stage, 0), KVP_STAGE_PART_BYTES,
                                       stage->token);
        if (err != KVP_OK) kvp_stage_rele(&stages->memory, stage->stage);
    }
    if (err != KVP_OK) {
        free(stage);
        return err == KVP_DEADLINE ? KVP_BUSY : err;
    }
    *stage_out = stage;
    return KVP_OK;
}

kvp_err_t
kvp_p2p_stages_take(kvp_p2p_stages_t *stages, kvp_p2p_stage_t **stage_out)
{
    if (kvp_list_is_empty(&stages->idle)) return stage_create(stages, stage_out);
    *stage_out = kvp_list_first(&stages->idle, kvp_p2p_stage_t, link);
    kvp_list_del(&(*stage_out)->link);
    return KVP_OK;
}

void
kvp_p2p_stages_give(kvp_p2p_stages_t *stages, kvp_p2p_stage_t *stage, bool is_quiet)
{
    if (is_quiet && !stages->is_private)
        kvp_list_add_head(&stages->idle, &stage->link);
    else
        stage_destroy(stages, stage);
}

kvp_peer_at_t
kvp_p2p_stage_at(const kvp_p2p_stage_t *stage)
{
    return (kvp_peer_at_t){
        .addr = (uintptr_t)kvp_stage_part(stage->stage, 0), .len = KVP_STAGE_PART_BYTES, .token = stage->token};
}

bool
kvp_p2p_stage_takes(const kvp_peer_moves_t *moves)
{
    for (uint32_t i = 0; i < moves->n; i++)
        if (moves->pieces[i].len > KVP_STAGE_PART_BYTES ||
            moves->pieces[i].from > KVP_STAGE_PART_BYTES - moves->pieces[i].len)
            return false;
    return true;
}

/* Begins one copy; the range is held until it is over. */
static kvp_err_t
begin_copy(kvp_p2p_stages_t *stages, kvp_p2p_stage_t *stage, kvp_peer_move_t kind, const kvp_peer_piece_t *piece,
           kvp_reg_t **reg_out)
{
    kvp_peer_at_t at = {.addr = piece->addr, .len = piece->len, .token = piece->token};
    uint8_t *staged = kvp_stage_part(stage->stage, 0) + piece->from;
    void *device = (void *)(uintptr_t)piece->addr; /* NOLINT(performance-no-int-to-ptr): it lies in a range of ours */
    bool is_store = kind == KVP_PEER_STORE;
    kvp_reg_t *reg = kvp_p2p_ranges_hold_device(stages->ranges, &at);

    *reg_out = reg;
    if (reg == NULL) return KVP_NOT_REGISTERED;
    return kvp_stage_copy(stage->stage, kvp_reg_mem(reg), is_store ? device : staged, is_store ? staged : device,
                          (size_t)piece->len);
}

uint32_t
kvp_p2p_stage_copy(kvp_p2p_stages_t *stages, kvp_p2p_stage_t *stage, const kvp_peer_moves_t *moves,
                   kvp_peer_moved_t *moved)
{
    kvp_reg_t *regs[TURN_PIECES];
    uint64_t bytes = 0;
    uint32_t n = 0;
    kvp_err_t err;

    while (n < moves->n && n < TURN_PIECES && bytes < TURN_BYTES) {
        moved[n].err = begin_copy(stages, stage, moves->kind, &moves->pieces[n], &regs[n]);
        bytes += moves->pieces[n++].len;
    }
    err = kvp_stage_wait(stage->stage);
    for (uint32_t i = 0; i < n; i++) {
        if (moved[i].err == KVP_OK) moved[i].err = err;
        kvp_p2p_ranges_rele(stages->ranges, regs[i]);
    }
    return n;
}
