/* SPDX-License-Identifier: Apache-2.0
 * The table of the keys of exported memory. The keys are random numbers, so a key is its own hash value. */
#include "transport/exports.h"

#include "common/clock.h"
#include "common/log.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS_MIN 64u

kvp_err_t
kvp_exports_init(kvp_exports_t *ex)
{
    *ex = (kvp_exports_t){.slots_n = SLOTS_MIN};
    pthread_rwlock_init(&ex->lock, NULL);
    ex->slots = calloc(ex->slots_n, sizeof *ex->slots);
    return ex->slots == NULL ? KVP_NOMEM : KVP_OK;
}

void
kvp_exports_fini(kvp_exports_t *ex)
{
    free(ex->slots);
    ex->slots = NULL;
    pthread_rwlock_destroy(&ex->lock);
}

/* Returns the slot that has the key, else the free slot where the key would go. */
static kvp_export_t *
slot_of(kvp_export_t *slots, size_t slots_n, uint64_t key)
{
    size_t i = key & (slots_n - 1);

    while (slots[i].key != 0 && slots[i].key != key)
        i = (i + 1) & (slots_n - 1);
    return &slots[i];
}

/* Grows the table so that it stays at most half full, which keeps look-ups short. */
static kvp_err_t
make_room(kvp_exports_t *ex)
{
    size_t more_n = ex->slots_n * 2;
    kvp_export_t *more;

    if ((ex->used + 1) * 2 <= ex->slots_n) return KVP_OK;
    more = calloc(more_n, sizeof *more);
    if (more == NULL) return KVP_NOMEM;
    for (size_t i = 0; i < ex->slots_n; i++)
        if (ex->slots[i].key != 0) *slot_of(more, more_n, ex->slots[i].key) = ex->slots[i];
    free(ex->slots);
    ex->slots = more;
    ex->slots_n = more_n;
    return KVP_OK;
}

kvp_err_t
kvp_exports_add(kvp_exports_t *ex, const kvp_mr_t *mr, kvp_access_t access, uint64_t *key_out)
{
    kvp_err_t err;

    pthread_rwlock_wrlock(&ex->lock);
    err = make_room(ex);
    if (err == KVP_OK) {
        kvp_export_t *slot;
        uint64_t key;

        do {
            key = kvp_random_u64();
            slot = slot_of(ex->slots, ex->slots_n, key);
        } while (slot->key != 0);
        *slot = (kvp_export_t){.key = key, .addr = mr->addr, .len = mr->len, .access = access, .mr = mr};
        ex->used++;
        *key_out = key;
    }
    pthread_rwlock_unlock(&ex->lock);
    return err;
}

void
kvp_exports_del(kvp_exports_t *ex, uint64_t key)
{
    kvp_export_t *hole;

    pthread_rwlock_wrlock(&ex->lock);
    hole = slot_of(ex->slots, ex->slots_n, key);
    if (key != 0 && hole->key == key) {
        size_t mask = ex->slots_n - 1;
        size_t at = (size_t)(hole - ex->slots);

        /* Moves back the entries that linear probing had put past the removed slot, so that a look-up does not stop at
         * the emptied slot before it finds them. */
        for (size_t i = (at + 1) & mask; ex->slots[i].key != 0; i = (i + 1) & mask) {
            size_t home = ex->slots[i].key & mask;
            if (((i - home) & mask) < ((i - at) & mask)) continue;
            ex->slots[at] = ex->slots[i];
            at = i;
        }
        ex->slots[at] = (kvp_export_t){0};
        ex->used--;
    }
    pthread_rwlock_unlock(&ex->lock);
}

kvp_err_t
kvp_exports_resolve(kvp_exports_t *ex, uint64_t key, uint64_t off, uint64_t len, kvp_access_t access, uint8_t **at_out,
                    const kvp_mr_t **mr_out)
{
    kvp_export_t found = {0};

    pthread_rwlock_rdlock(&ex->lock);
    if (key != 0) found = *slot_of(ex->slots, ex->slots_n, key);
    pthread_rwlock_unlock(&ex->lock);

    if (found.key == 0) return KVP_NO_SEGMENT;
    if (off > found.len || len > found.len - off) return KVP_INVALID;
    if (access == KVP_ACCESS_WRITE && found.access != KVP_ACCESS_WRITE) return KVP_INVALID;
    *at_out = found.addr + off;
    if (mr_out != NULL) *mr_out = found.mr;
    return KVP_OK;
}

void
kvp_exports_token(uint64_t key, kvp_token_t *token_out)
{
    *token_out = (kvp_token_t){.len = sizeof key, .fd = -1};
    memcpy(token_out->bytes, &key, sizeof key);
}

kvp_err_t
kvp_exports_token_key(const kvp_token_t *token, uint64_t *key_out)
{
    if (token->len != sizeof *key_out) return KVP_INVALID;
    memcpy(key_out, token->bytes, sizeof *key_out);
    return KVP_OK;
}
