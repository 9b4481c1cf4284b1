/* SPDX-License-Identifier: Apache-2.0
 * REPORT: sends the contents of the memory, page by page, to a master that does not know them. The answer to a page
 * names the extents that the master does not want. */
#include "node/priv.h"

#include "proto/pb.h"

#include "proto/kvpool.pb-c.h"

kvp_err_t
kvp_node_report_begin(kvp_node_t *node, uint64_t since)
{
    kvp_err_t err = kvp_node_core_report_begin(node->core, since);

    if (err != KVP_OK) return err;
    node->link.state = KVP_LINK_REPORTING;
    node->link.report_request = 0;
    node->link.is_report_whole = since == 0;
    return kvp_node_report_next(node);
}

static void
send_page(kvp_node_t *node, const kvp_node_page_t *page, const kvp_buf_t *tail)
{
    Kvp__Pb__Report msg = KVP__PB__REPORT__INIT;
    kvp_node_link_t *l = &node->link;

    msg.uuid = (ProtobufCBinaryData){sizeof node->mem->uuid, node->mem->uuid};
    msg.n = page->n;
    msg.is_whole = l->is_report_whole;
    msg.is_last = page->is_last;
    if (msg.is_whole) msg.tenant = node->mem->chunks[page->chunk].tenant;
    l->is_report_last = page->is_last;
    l->report_request = ++l->next_request;
    kvp_pb_frame(&l->conn.out, KVP_OP_REPORT, 0, l->report_request, &msg.base, tail->data, tail->len);
}

kvp_err_t
kvp_node_report_next(kvp_node_t *node)
{
    kvp_node_link_t *l = &node->link;
    kvp_node_page_t page;
    kvp_buf_t tail;
    kvp_err_t err;

    if (l->state != KVP_LINK_REPORTING || l->report_request != 0 || node->quiesce.is_revoking) return KVP_OK;
    kvp_buf_init(&tail, 0);
    err = kvp_node_core_report_page(node->core, &tail, &page);
    if (err == KVP_OK) send_page(node, &page, &tail);
    kvp_buf_fini(&tail);
    return err;
}

kvp_err_t
kvp_node_report_on_answer(kvp_node_t *node, const kvp_frame_t *frame, bool *is_over_out)
{
    kvp_node_link_t *l = &node->link;
    const uint8_t *flags = NULL;
    Kvp__Pb__Reply *msg;
    kvp_rd_t rd;
    kvp_pb_t pb;
    kvp_err_t err = KVP_PROTO;

    *is_over_out = false;
    if (l->state != KVP_LINK_REPORTING || frame->hdr.request_id != l->report_request) return KVP_OK;
    msg = kvp_pb_unpack(&pb, &kvp__pb__reply__descriptor, frame);
    kvp_rd_init(&rd, frame->tail, frame->tail_len);
    if (msg != NULL) {
        err = msg->err;
        flags = kvp_rd_array(&rd, msg->n, 1);
    }
    if (err == KVP_OK)
        err = flags == NULL && msg->n > 0 ? KVP_PROTO : kvp_node_core_report_answer(node->core, flags, msg->n);
    kvp_pb_free(&pb, msg);
    if (err != KVP_OK) return err;
    l->report_request = 0;
    *is_over_out = l->is_report_last;
    return l->is_report_last ? KVP_OK : kvp_node_report_next(node);
}
