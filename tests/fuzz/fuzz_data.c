/* SPDX-License-Identifier: Apache-2.0
 * Data over TCP, the serving side: the input is a stream of requests against one exported memory of exactly its size.
 * Keys 1 and 2 in the input stand for the reader's and the writer's. What the decoder lets through is done, so that
 * AddressSanitizer sees one byte too far; and the same stream in single bytes must mean the same. */
#include "transport/exports.h"
#include "transport/tcp/wire.h"
#include "transport/local.h"
#include "tests/fuzz/fuzz_check.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY_BYTES 1000u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct {
    kvp_exports_t exports;
    kvp_mr_t mr;
    uint64_t keys[3];
    uint64_t trace; /* a sum over all that was decoded and done */
} world_t;

static uint64_t
key_of(const world_t *w, uint64_t key)
{
    return key == 1 || key == 2 ? w->keys[key] : key;
}

static void
note(world_t *w, uint64_t v)
{
    w->trace = (w->trace ^ v) * 0x9E3779B97F4A7C15ull;
}

/* Returns where the body of a WRITE lands, NULL where it must not. */
static uint8_t *
do_op(world_t *w, const kvp_data_op_t *op)
{
    kvp_access_t access = op->kind == KVP_DATA_READ ? KVP_ACCESS_READ : KVP_ACCESS_WRITE;
    uint8_t *at;
    uint8_t *guard;
    kvp_err_t err = kvp_exports_resolve(&w->exports, key_of(w, op->key), op->off, op->len, access, &at, NULL);

    note(w, (uint64_t)op->kind << 32 | (uint32_t)err);
    if (err != KVP_OK) return NULL;
    if (op->kind == KVP_DATA_READ) {
        for (uint64_t i = 0; i < op->len; i++)
            note(w, at[i]);
        return NULL;
    }
    if (op->kind == KVP_DATA_PUBLISH) {
        if (kvp_words_fit(at, 8)) note(w, (uint32_t)kvp_word_publish(at, op->guard_word));
        return NULL;
    }
    if ((op->flags & KVP_DATA_GUARDED) == 0) return at;
    err = kvp_exports_resolve(&w->exports, key_of(w, op->guard_key), op->guard_off, 8, KVP_ACCESS_READ, &guard, NULL);
    note(w, (uint32_t)err);
    return err == KVP_OK && kvp_words_fit(guard, 8) && kvp_word_load(guard) == op->guard_word ? at : NULL;
}

/* Runs the stream in pieces of at most `piece` bytes; the returned trace does not depend on it. */
static uint64_t
run(world_t *w, const uint8_t *data, size_t size, size_t piece)
{
    kvp_data_dec_t dec = {0};
    uint8_t *land = NULL;
    uint32_t ops = 0;
    uint64_t promised = 0; /* body bytes of the last operation still to come */
    kvp_err_t err = KVP_OK;

    w->trace = 1;
    memset(w->mr.addr, 0, w->mr.len);
    while (size > 0 && err == KVP_OK) {
        size_t left = size < piece ? size : piece;
        const uint8_t *at = data;
        kvp_data_ev_t ev = KVP_DATA_EV_OP;

        size -= left;
        data += left;
        while (ev != KVP_DATA_EV_MORE) {
            err = kvp_data_dec_next(&dec, &at, &left, &ev);
            if (err != KVP_OK) break;
            if (ev == KVP_DATA_EV_OP) {
                check(promised == 0 && ++ops <= dec.req.n_ops);
                check(dec.is_read == (dec.op.kind == KVP_DATA_READ));
                land = do_op(w, &dec.op);
                promised = dec.op.kind == KVP_DATA_WRITE ? dec.op.len : 0;
            } else if (ev == KVP_DATA_EV_BODY) {
                check(dec.body_len > 0 && dec.body_len <= promised);
                for (size_t i = 0; i < dec.body_len; i++)
                    note(w, dec.body[i]);
                if (land != NULL) {
                    memcpy(land, dec.body, dec.body_len);
                    land += dec.body_len;
                }
                promised -= dec.body_len;
            } else if (ev == KVP_DATA_EV_END) {
                check(promised == 0 && ops == dec.req.n_ops);
                note(w, dec.req.seq);
                ops = 0;
            }
            check(kvp_data_dec_body_left(&dec) == promised);
        }
    }
    note(w, (uint32_t)err);
    return w->trace;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    world_t w = {.mr = {.addr = calloc(1, MEMORY_BYTES), .len = MEMORY_BYTES}};
    uint64_t trace;

    if (w.mr.addr == NULL || kvp_exports_init(&w.exports) != KVP_OK) abort();
    if (kvp_exports_add(&w.exports, &w.mr, KVP_ACCESS_READ, &w.keys[1]) != KVP_OK) abort();
    if (kvp_exports_add(&w.exports, &w.mr, KVP_ACCESS_WRITE, &w.keys[2]) != KVP_OK) abort();
    trace = run(&w, data, size, size);
    check(run(&w, data, size, 1) == trace);
    check(run(&w, data, size, 37) == trace);
    kvp_exports_fini(&w.exports);
    free(w.mr.addr);

    /* The asking side's check of an answer's head. */
    if (size >= kvp_data_rep_head_bytes(2)) {
        kvp_data_rep_t rep;
        memcpy(&rep, data, sizeof rep);
        if (kvp_data_rep_check(data, rep.seq, 2, 100) == KVP_OK) check(rep.bytes == 8 + 100 && rep.n_ops == 2);
    }
    return 0;
}
