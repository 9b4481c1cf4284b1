/* SPDX-License-Identifier: Apache-2.0
 * kvpool_p2p_*: registers memory of the caller, and allocates memory of the endpoint. */
#include "p2p/endpoint.h"

#include "common/clock.h"

/* Registers a range for peers under a new token. own is the endpoint's memory that contains the range, or NULL for
 * memory of the caller; the caller has begun a turn with it. The mapping is published first, so that no peer finds
 * the range and is then refused its mapping. */
static kvp_err_t
add_range(kvpool_p2p_t *p2p, kvp_p2p_own_t *own, void *addr, size_t len, uint64_t *token_out)
{
    uint64_t token = kvp_random_u64();
    bool is_told = kvp_p2p_owns_publish(&p2p->owns, own, len, token);
    kvp_err_t err = kvp_p2p_ranges_add(&p2p->ranges, addr, len, token, false);

    if (err == KVP_OK && token_out != NULL) *token_out = token;
    if (err != KVP_OK && is_told) kvp_p2p_owns_hide(&p2p->owns, own);
    return err;
}

int
kvpool_p2p_register(kvpool_p2p_t *p2p, void *addr, size_t len, uint64_t *token_out)
{
    kvp_p2p_own_t *own;
    kvp_err_t err = kvp_p2p_enter(p2p);

    if (err != KVP_OK) return err;
    own = kvp_p2p_owns_begin(&p2p->owns, addr);
    err = add_range(p2p, own, addr, len, token_out);
    kvp_p2p_owns_end(&p2p->owns, own);
    return kvp_p2p_leave(p2p, err);
}

int
kvpool_p2p_unregister(kvpool_p2p_t *p2p, void *addr)
{
    kvp_p2p_own_t *own;
    kvp_err_t err = kvp_p2p_enter(p2p), revoked;

    if (err != KVP_OK) return err;
    own = kvp_p2p_owns_begin(&p2p->owns, addr);
    /* Revoked memory of the endpoint gets other pages. Network adapters must have released the old pages by then, also
     * for our own transfers, so hide and unregister the range first. */
    kvp_p2p_owns_hide(&p2p->owns, own);
    err = kvp_p2p_ranges_del(&p2p->ranges, addr);
    revoked = kvp_p2p_owns_revoke(&p2p->owns, own);
    kvp_p2p_owns_end(&p2p->owns, own);
    return kvp_p2p_leave(p2p, err != KVP_OK ? err : revoked);
}

int
kvpool_p2p_alloc(kvpool_p2p_t *p2p, size_t len, void **addr_out, uint64_t *token_out)
{
    kvp_p2p_own_t *own = NULL;
    kvp_err_t err = kvp_p2p_enter(p2p);

    if (err != KVP_OK) return err;
    err = addr_out == NULL ? KVP_INVALID : kvp_p2p_owns_alloc(&p2p->owns, len, &own);
    if (err != KVP_OK) return kvp_p2p_leave(p2p, err);
    err = add_range(p2p, own, kvp_p2p_own_mem(own)->addr, len, token_out);
    if (err == KVP_OK) {
        *addr_out = kvp_p2p_own_mem(own)->addr;
        kvp_p2p_owns_end(&p2p->owns, own);
    } else {
        kvp_p2p_owns_free(&p2p->owns, own);
    }
    return kvp_p2p_leave(p2p, err);
}

int
kvpool_p2p_dealloc(kvpool_p2p_t *p2p, void *addr)
{
    kvp_p2p_own_t *own;
    kvp_err_t err = kvp_p2p_enter(p2p);

    if (err != KVP_OK) return err;
    own = kvp_p2p_owns_begin(&p2p->owns, addr);
    if (own == NULL) return kvp_p2p_leave(p2p, KVP_NOT_REGISTERED);
    kvp_p2p_owns_hide(&p2p->owns, own);
    kvp_p2p_ranges_del_all(&p2p->ranges, addr, kvp_p2p_own_mem(own)->len);
    kvp_p2p_owns_free(&p2p->owns, own);
    return kvp_p2p_leave(p2p, KVP_OK);
}
