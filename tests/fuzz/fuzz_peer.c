/* SPDX-License-Identifier: Apache-2.0
 * What endpoints of peer-to-peer transfers decode of one another: a stream of frames, each given to every decoder.
 * What a decoder takes lies within its bounds, and within the frame. */
#include "p2p/base/wire.h"
#include "tests/fuzz/fuzz_check.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check_inside(const kvp_frame_t *frame, const void *records, size_t n, size_t record_bytes)
{
    check((const uint8_t *)records == frame->tail && n * record_bytes == frame->tail_len);
}

static void
on_requests(const kvp_frame_t *frame)
{
    kvp_peer_hello_t hello;
    kvp_peer_moves_t moves;
    kvp_peer_find_t find;
    const uint64_t *conns;
    kvp_peer_note_t *note;
    uint64_t token, conn;
    bool is_return;
    uint32_t n;

    if (kvp_peer_hello_decode(frame, &hello) == KVP_OK) {
        check(hello.incarnation != 0 && strlen(hello.host_id) <= KVP_HOST_ID_MAX);
    }
    if (kvp_peer_find_decode(frame, &find) == KVP_OK) {
        check(find.n >= 1 && find.n <= KVP_PEER_BATCH_MAX);
        check_inside(frame, find.at, find.n, sizeof *find.at);
    }
    if (kvp_peer_moves_decode(frame, &moves) == KVP_OK) {
        check(moves.n >= 1 && moves.n <= KVP_PEER_BATCH_MAX);
        check_inside(frame, moves.pieces, moves.n, sizeof *moves.pieces);
        for (uint32_t i = 0; i < moves.n; i++) {
            const kvp_peer_piece_t *piece = &moves.pieces[i];

            check(piece->token != 0 && piece->len > 0 && piece->addr + piece->len > piece->addr);
            check(piece->from == 0 || (moves.kind != KVP_PEER_SUM && moves.kind != KVP_PEER_CHECK));
            check(piece->from + piece->len >= piece->from);
        }
    }
    if (kvp_peer_cut_decode(frame, &conns, &n) == KVP_OK) {
        check(n >= 1 && n <= KVP_PEER_BATCH_MAX);
        check_inside(frame, conns, n, sizeof *conns);
        for (uint32_t i = 0; i < n; i++)
            check(conns[i] != 0);
    }
    if (kvp_peer_map_decode(frame, &token) == KVP_OK) check(token != 0);
    if (kvp_peer_rdma_decode(frame, &conn) == KVP_OK) check(conn != 0);
    if (kvp_peer_stage_decode(frame, &is_return) == KVP_OK) check(frame->tail_len == 0);
    if (kvp_peer_note_decode(frame, &note) == KVP_OK) {
        check(strlen(note->name) <= KVP_PEER_NOTIFY_NAME_MAX && strlen(note->message) <= KVP_PEER_NOTIFY_MAX);
        free(note);
    }
}

static void
on_answers(const kvp_frame_t *frame)
{
    static const kvp_peer_at_t asked = {.addr = 4096, .len = 100};
    kvp_peer_hello_reply_t reply;
    const void *records;

    if (kvp_peer_hello_reply_decode(frame, &reply) == KVP_OK)
        check(reply.err <= 0 && (reply.err != KVP_OK || reply.incarnation != 0));
    if (kvp_peer_reply_decode(frame, KVP_OP_PEER_FIND, 1, sizeof(kvp_peer_range_t), &records) == KVP_OK) {
        kvp_peer_range_t range;

        check_inside(frame, records, 1, sizeof range);
        memcpy(&range, records, sizeof range);
        if (kvp_peer_range_check(&range, &asked) == KVP_OK) {
            check(range.base <= asked.addr && asked.addr + asked.len - range.base <= range.len);
            check(range.token != 0 && range.key_len <= KVP_PEER_KEY_MAX);
        }
    }
    if (kvp_peer_reply_decode(frame, KVP_OP_PEER_MOVE, 2, sizeof(kvp_peer_moved_t), &records) == KVP_OK)
        check_inside(frame, records, 2, sizeof(kvp_peer_moved_t));
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* A receive buffer's alignment: tails are used in place. */
    uint8_t *copy = aligned_alloc(8, kvp_align_up(size + 8, 8));
    kvp_frame_t frame;
    size_t used;

    if (copy == NULL) return 0;
    for (size_t at = 0; at < size; at += used) {
        memcpy(copy, data + at, size - at);
        if (kvp_frame_parse(copy, size - at, &frame, &used) != KVP_OK || used == 0) break;
        on_requests(&frame);
        on_answers(&frame);
    }
    free(copy);
    return 0;
}
