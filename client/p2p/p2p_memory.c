/* SPDX-License-Identifier: Apache-2.0
 * kvpool_p2p_*: memory, of the caller's and of the endpoint's own.
 */
#include "client/p2p/p2p.h"

static kvp_err_t
add(kvpool_p2p_t *p2p, void *addr, size_t len, uint64_t *token_out)
{
    uint64_t token;
    kvp_err_t err = kvp_p2p_ranges_add(&p2p->ranges, addr, len, &token);

    if (err != KVP_OK) return err;
    kvp_p2p_owns_publish(&p2p->owns, addr, len, token);
    if (token_out != NULL) *token_out = token;
    return KVP_OK;
}

int
kvpool_p2p_register(kvpool_p2p_t *p2p, void *addr, size_t len, uint64_t *token_out)
{
    kvp_err_t err = kvp_p2p_enter(p2p);

    return err != KVP_OK ? err : kvp_p2p_leave(p2p, add(p2p, addr, len, token_out));
}

int
kvpool_p2p_unregister(kvpool_p2p_t *p2p, void *addr)
{
    kvp_err_t err = kvp_p2p_enter(p2p), revoked;

    if (err != KVP_OK) return err;
    revoked = kvp_p2p_owns_revoke(&p2p->owns, addr);
    err = kvp_p2p_ranges_del(&p2p->ranges, addr);
    return kvp_p2p_leave(p2p, err != KVP_OK ? err : revoked);
}

int
kvpool_p2p_alloc(kvpool_p2p_t *p2p, size_t len, void **addr_out, uint64_t *token_out)
{
    void *addr = NULL;
    kvp_err_t err = kvp_p2p_enter(p2p);

    if (err != KVP_OK) return err;
    err = addr_out == NULL ? KVP_INVALID : kvp_p2p_owns_alloc(&p2p->owns, len, &addr);
    if (err == KVP_OK) {
        err = add(p2p, addr, len, token_out);
        if (err == KVP_OK)
            *addr_out = addr;
        else
            kvp_p2p_own_destroy(&p2p->owns, kvp_p2p_owns_take(&p2p->owns, addr));
    }
    return kvp_p2p_leave(p2p, err);
}

int
kvpool_p2p_dealloc(kvpool_p2p_t *p2p, void *addr)
{
    kvp_p2p_own_t *own;
    kvp_err_t err = kvp_p2p_enter(p2p);

    if (err != KVP_OK) return err;
    own = kvp_p2p_owns_take(&p2p->owns, addr);
    if (own == NULL) return kvp_p2p_leave(p2p, KVP_NOT_REGISTERED);
    kvp_ignore(kvp_p2p_ranges_del(&p2p->ranges, addr), "it may have been unregistered before");
    kvp_p2p_own_destroy(&p2p->owns, own);
    return kvp_p2p_leave(p2p, KVP_OK);
}
