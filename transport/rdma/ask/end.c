/* SPDX-License-Identifier: Apache-2.0
 * The end of transfers and of an endpoint. Queue pairs are destroyed before a transfer completes with an error: from
 * then on no queue pair touches local memory. */
#include "transport/rdma/ask/ep.h"

void
kvp_rdma_ep_hang_up(kvp_rdma_ep_t *ep)
{
    for (uint32_t i = 0; i < ep->rails_n; i++)
        kvp_rdma_rail_close(&ep->rails[i]);
    ep->state = KVP_RDMA_EP_BROKEN;
}

void
kvp_rdma_ep_finish(kvp_rdma_ep_t *ep, kvp_xfer_t *xfer, kvp_err_t status)
{
    xfer->status = status;
    xfer->link = (kvp_list_t){0};
    ep->fired++;
    xfer->done(xfer);
}

bool
kvp_rdma_ep_is_idle(const kvp_rdma_ep_t *ep)
{
    for (uint32_t i = 0; i < ep->rails_n; i++)
        if (!kvp_rdma_rail_is_idle(&ep->rails[i])) return false;
    return kvp_list_is_empty(&ep->todo) && ep->lost_at == ep->lost_n;
}

static void
finish_list(kvp_rdma_ep_t *ep, kvp_list_t *list, kvp_err_t status)
{
    while (!kvp_list_is_empty(list)) {
        kvp_xfer_t *xfer = kvp_list_first(list, kvp_xfer_t, link);

        kvp_list_del(&xfer->link);
        kvp_rdma_ep_finish(ep, xfer, status);
    }
}

/* Drops the records of work requests (works) of all rails, while the transfers of the works still exist. */
static void
forget_works(kvp_rdma_ep_t *ep)
{
    kvp_rdma_work_t work;

    for (uint32_t i = 0; i < ep->rails_n; i++)
        while (kvp_rdma_rail_take_work(&ep->rails[i], UINT64_MAX, &work))
            continue;
    ep->lost_at = ep->lost_n = 0;
}

void
kvp_rdma_ep_finish_all(kvp_rdma_ep_t *ep, kvp_err_t status)
{
    forget_works(ep);
    finish_list(ep, &ep->posted, status);
    finish_list(ep, &ep->todo, status);
    ep->todo_n = 0;
    ep->unsummed_n = 0;
    ep->bytes = 0;
}

void
kvp_rdma_ep_lose(kvp_rdma_ep_t *ep, kvp_xfer_t *guilty, kvp_err_t status)
{
    kvp_rdma_ep_hang_up(ep);
    forget_works(ep);
    if (guilty != NULL) {
        kvp_list_del(&guilty->link);
        kvp_rdma_ep_finish(ep, guilty, status);
    }
    kvp_rdma_ep_finish_all(ep, KVP_DISCONNECTED);
}
