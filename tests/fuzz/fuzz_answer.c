/* SPDX-License-Identifier: Apache-2.0
 * A hostile master against the client's batch machines: the input is the frames that it answers with, and what becomes
 * of the transfers between them. Whatever comes, the machine ends, within a bound of steps, with a result for each
 * item. */
#include "client/cache/locations.h"
#include "client/core/getop.h"
#include "client/core/putop.h"
#include "tests/fuzz/fuzz_check.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ITEMS 4u
#define STEPS_MAX 10000u
#define MS 1000000ull

static const kvp_op_session_t plain_session = {.incarnation = 7, .digest_seed = 11, .term = 1};

typedef struct {
    const uint8_t *data;
    size_t size;
    uint64_t now_ns;
} input_t;

static uint8_t
take(input_t *in)
{
    if (in->size == 0) return 0;
    in->size--;
    return *in->data++;
}

/* The next answer: a frame of the input, copied to where its tail is aligned as the shell has it. */
static bool
take_frame(input_t *in, uint8_t **copy_out, kvp_frame_t *frame_out)
{
    size_t len = (size_t)take(in) * 4, used;

    if (len > in->size) len = in->size;
    *copy_out = malloc(len + 1);
    check(*copy_out != NULL);
    memcpy(*copy_out, in->data, len);
    in->data += len;
    in->size -= len;
    return kvp_frame_parse(*copy_out, len, frame_out, &used) == KVP_OK && used > 0;
}

static void
move(input_t *in, kvp_move_t *moves, uint32_t n)
{
    static const kvp_err_t errs[] = {KVP_OK,       KVP_OK,     KVP_STALE, KVP_NODE_LOST,
                                     KVP_DEADLINE, KVP_CLOSED, KVP_PROTO, KVP_EAGAIN};

    for (uint32_t i = 0; i < n; i++) {
        check(moves[i].item < ITEMS);
        moves[i].err = errs[take(in) % KVP_ARRAY_LEN(errs)];
        moves[i].has_sum = (take(in) & 1) != 0;
        moves[i].is_drained = (take(in) & 1) != 0;
        moves[i].sum = take(in);
        if (moves[i].kind != KVP_MOVE_READ) continue;
        moves[i].has_desc = !(moves[i].flags & KVP_READ_SUM_ALONE) || moves[i].sum % 2 == 0;
        moves[i].is_sum_path = (moves[i].flags & KVP_READ_SUM_ALONE) != 0;
        memset(&moves[i].desc, take(in), sizeof moves[i].desc);
    }
}

/* Both machines speak the same protocol of steps with different types: this is it once. */
#define RUN(op, prefix, reply)                                                                                         \
    for (uint32_t steps = 0;; steps++) {                                                                               \
        kvp_step_t step = prefix##_next(&(op), in->now_ns);                                                            \
                                                                                                                       \
        check(steps < STEPS_MAX);                                                                                      \
        if (step.kind == KVP_STEP_DONE) break;                                                                         \
        in->now_ns += MS * (take(in) % 16 + 1);                                                                        \
        if (step.kind == KVP_STEP_KNOWN) {                                                                             \
            KNOWN_##prefix;                                                                                            \
        } else if (step.kind == KVP_STEP_SESSION) {                                                                    \
            if (take(in) % 8 == 7)                                                                                     \
                prefix##_fail(&(op), KVP_UNREACHABLE);                                                                 \
            else                                                                                                       \
                prefix##_on_session(&(op), &session);                                                                  \
        } else if (step.kind == KVP_STEP_CALL) {                                                                       \
            kvp_frame_t frame;                                                                                         \
            uint8_t *next;                                                                                             \
                                                                                                                       \
            if (!take_frame(in, &next, &frame))                                                                        \
                prefix##_on_call_failed(&(op), KVP_DISCONNECTED);                                                      \
            else                                                                                                       \
                kvp_ignore(reply, "PROTO ends the batch, which the loop sees");                                        \
            free(last); /* an answer stays until the next call */                                                      \
            last = next;                                                                                               \
        } else if (step.kind == KVP_STEP_MOVE) {                                                                       \
            check((op).moves_n > 0 && (op).moves_n <= (op).moves_cap);                                                 \
            move(in, (op).moves, (op).moves_n);                                                                        \
            prefix##_on_moved(&(op), in->now_ns);                                                                      \
        } else if (step.kind == KVP_STEP_SLEEP) {                                                                      \
            check(step.until_ns > in->now_ns - 16 * MS);                                                               \
            if (step.until_ns > in->now_ns) in->now_ns = step.until_ns;                                                \
        }                                                                                                              \
    }
#define KNOWN_kvp_getop kvp_getop_on_known(&op, take(in) % 4 == 3 ? NULL : &session)
#define KNOWN_kvp_putop check(!"a put looks for no known locations")

static void
run_get(input_t *in, const kvp_known_t *known)
{
    kvp_op_session_t session = plain_session;
    kvp_cached_place_t places[ITEMS];
    kvp_getop_item_t items[ITEMS] = {{.key = "a", .key_len = 1, .cap = 64},
                                     {.key = "bb", .key_len = 2, .cap = 4096},
                                     {.key = "ccc", .key_len = 3, .cap = UINT64_MAX},
                                     {.key = "a", .key_len = 1, .cap = 1}};
    kvp_move_t moves[2];
    kvp_buf_t out = {0};
    kvp_getop_t op = {.items = items,
                      .n = ITEMS,
                      .moves = moves,
                      .moves_cap = 2,
                      .out = &out,
                      .deadline_ns = in->now_ns + 1000 * MS,
                      .wants_sums = (take(in) & 1) != 0,
                      .places = places};
    uint8_t *last = NULL;

    session.known = known;
    kvp_getop_begin(&op);
    RUN(op, kvp_getop, kvp_getop_on_reply(&op, &frame))
    for (uint32_t i = 0; i < ITEMS; i++)
        check(items[i].err <= 0 && (items[i].err != KVP_OK || items[i].len <= items[i].cap));
    free(last);
    kvp_buf_fini(&out);
}

static uint64_t
attempts(void *arg, uint32_t n)
{
    uint64_t *next = arg, first = *next;

    *next += n;
    return first;
}

static void
run_put(input_t *in)
{
    kvp_op_session_t session = plain_session;
    kvp_putop_item_t items[ITEMS] = {{.key = "a", .key_len = 1, .len = 64},
                                     {.key = "bb", .key_len = 2, .len = 4096},
                                     {.key = "ccc", .key_len = 3, .len = 1},
                                     {.key = "a", .key_len = 1, .len = 64}};
    kvp_move_t moves[2];
    kvp_buf_t out = {0};
    uint64_t next_attempt = 1;
    kvp_putop_t op = {.items = items,
                      .n = ITEMS,
                      .moves = moves,
                      .moves_cap = 2,
                      .out = &out,
                      .deadline_ns = in->now_ns + 1000 * MS,
                      .attempts = attempts,
                      .attempts_arg = &next_attempt};
    uint8_t *last = NULL;

    kvp_putop_begin(&op);
    RUN(op, kvp_putop, kvp_putop_on_reply(&op, &frame, in->now_ns))
    for (uint32_t i = 0; i < ITEMS; i++)
        check(items[i].err <= 0);
    free(last);
    kvp_buf_fini(&out);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input_t in = {.data = data, .size = size, .now_ns = 1000 * MS};
    kvp_locations_news_t news = {.asked_ns = in.now_ns, .lease_ms = 500, .grace_ms = 500};
    kvp_locations_t *locs;

    check(kvp_locations_create(64, &locs) == KVP_OK);
    kvp_locations_apply(locs, &news);
    if ((take(&in) & 1) != 0) {
        run_get(&in, kvp_locations_known(locs)); /* the second one goes where the first one was told to */
        run_get(&in, kvp_locations_known(locs));
    } else {
        run_put(&in);
    }
    kvp_locations_destroy(locs);
    return 0;
}
