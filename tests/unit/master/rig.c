/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/master/rig.h"

int
rig_open(void **state)
{
    const rig_conf_t *conf = *state;
    uint32_t mems = conf->mems == 0 ? 1 : conf->mems, nodes = conf->nodes == 0 ? mems : conf->nodes;
    uint64_t chunk = conf->chunk == 0 ? conf->size : conf->chunk,
             size_b = conf->size_b == 0 ? conf->size : conf->size_b;
    rig_t *g = calloc(1, sizeof *g);

    g->w = world_open(&conf->conf);
    if (conf->size > 0) {
        g->a = mem_make(g->w, "a", conf->size, chunk);
        g->na = node_open_on(g->w, g->a, "a");
        if (mems > 1) g->b = mem_make(g->w, "b", size_b, kvp_min_u64(chunk, size_b));
        if (nodes > 1) g->nb = node_open_on(g->w, g->b, "b");
    }
    if (!conf->has_no_client) g->c = client_open_of(g->w, conf->is_one_tenant_each ? 1 : 0);
    if (conf->has_two) g->d = client_open(g->w);
    if (conf->is_one_tenant_each) g->d = client_open_of(g->w, 2);
    *state = g;
    return 0;
}

int
rig_close(void **state)
{
    rig_t *g = *state;

    world_close(g->w);
    free(g);
    return 0;
}

void
rig_restart(rig_t *g)
{
    world_restart(g->w);
    g->na = g->nb = g->d = NULL;
    g->c = client_open(g->w);
}

void
rig_restart_told(rig_t *g)
{
    rig_restart(g);
    g->na = node_open_on(g->w, g->a, "a");
    if (g->b != NULL) g->nb = node_open_on(g->w, g->b, "b");
}

void
fill(peer_t *c, uint32_t from, uint32_t to, uint64_t len)
{
    for (uint32_t i = from; i < to; i++)
        assert_int_equal(put(c, key_name("key/", i), len), KVP_OK);
}

uint32_t
count_of(peer_t *c, const char *prefix, uint32_t from, uint32_t to)
{
    uint32_t n = 0;

    for (uint32_t i = from; i < to; i++)
        n += exists(c, key_name(prefix, i));
    return n;
}

uint32_t
count(peer_t *c, uint32_t from, uint32_t to)
{
    return count_of(c, "key/", from, to);
}

void
hold(peer_t *c, uint32_t from, uint32_t to, uint64_t *tickets)
{
    for (uint32_t i = from; i < to; i++)
        assert_int_equal(get(c, key_name("key/", i), &tickets[i], NULL), KVP_OK);
}

kvp_err_t
attempt_begin(peer_t *c, put_t *what, const Kvp__Pb__PutBegin *like, kvp_wire_loc_t *locs_out, uint32_t *n_out)
{
    places_t places;
    kvp_err_t err;

    places_read(peer_wait(c, put_begin_with(c, what, 1, like), SEC), &places);
    err = places.err == KVP_OK ? places.objs[0].err : places.err;
    if (locs_out != NULL) memcpy(locs_out, places.locs, places.nloc * sizeof *locs_out);
    if (n_out != NULL) *n_out = places.nloc;
    places_free(&places);
    return err;
}

kvp_err_t
begin_put(peer_t *c, const char *key, uint64_t len, uint32_t wait_ms)
{
    put_t one = {.key = key, .len = len};
    places_t p;
    kvp_err_t err;

    places_read(peer_wait(c, put_begin(c, &one, 1, wait_ms), 200 * MS), &p);
    err = p.objs[0].err;
    places_free(&p);
    return err == KVP_OK ? abort_put(c, one.attempt, true) : err;
}

void
granted(peer_t *c, uint64_t id, kvp_err_t err)
{
    places_t places;

    places_read(peer_reply(c, id), &places);
    assert_int_equal(places.objs[0].err, err);
    places_free(&places);
}

kvp_err_t
put_told(peer_t *c, const char *key, uint64_t len)
{
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;

    head.wait_ms = 5000;
    return put_like(c, &(put_t){.key = key, .len = len}, &head);
}

uint64_t
bump_begun(peer_t *c, uint32_t wait_ms)
{
    Kvp__Pb__Bump head = KVP__PB__BUMP__INIT;

    head.wait_ms = wait_ms;
    head.is_all = true;
    return peer_send(c, KVP_OP_BUMP, 0, &head.base, NULL, 0);
}

uint32_t
listed(peer_t *c)
{
    Kvp__Pb__List head = KVP__PB__LIST__INIT;
    Kvp__Pb__ListReply *reply;
    kvp_pb_t pb;
    reply_t *r = peer_reply(c, peer_send(c, KVP_OP_LIST, 0, &head.base, NULL, 0));
    uint32_t n;

    reply = kvp_pb_unpack(&pb, &kvp__pb__list_reply__descriptor, &r->frame);
    assert_non_null(reply);
    assert_int_equal(reply->cursor, 0);
    n = reply->n;
    kvp_pb_free(&pb, reply);
    reply_free(r);
    return n;
}

kvp_cause_t
cause_of(peer_t *c, const char *key)
{
    Kvp__Pb__Explain head = KVP__PB__EXPLAIN__INIT;
    Kvp__Pb__ExplainReply *reply;
    kvp_cause_t cause;
    kvp_pb_t pb;
    reply_t *r;

    head.key = (ProtobufCBinaryData){strlen(key), (uint8_t *)key};
    r = peer_reply(c, peer_send(c, KVP_OP_EXPLAIN, 0, &head.base, NULL, 0));
    reply = kvp_pb_unpack(&pb, &kvp__pb__explain_reply__descriptor, &r->frame);
    assert_non_null(reply);
    assert_int_equal(reply->n_found, 1);
    cause = reply->found[0]->cause;
    kvp_pb_free(&pb, reply);
    reply_free(r);
    return cause;
}

void
tenant_info(peer_t *c, Kvp__Pb__TenantInfo *out)
{
    static char name[KVP_TENANT_NAME_MAX + 1];
    Kvp__Pb__StatusReply *head;
    kvp_pb_t pb;
    reply_t *r = peer_reply(c, peer_send(c, KVP_OP_STATUS, 0, NULL, NULL, 0));

    head = kvp_pb_unpack(&pb, &kvp__pb__status_reply__descriptor, &r->frame);
    assert_non_null(head);
    assert_int_equal(head->n_tenants, 1);
    *out = *head->tenants[0];
    snprintf(name, sizeof name, "%s", out->tenant);
    out->tenant = name;
    kvp_pb_free(&pb, head);
    reply_free(r);
}

void
ask_head(peer_t *who, uint8_t op, const ProtobufCMessage *msg, const ProtobufCMessageDescriptor *type, void *head_out)
{
    kvp_pb_t pb;
    reply_t *r = peer_wait(who, peer_send(who, op, 0, msg, NULL, 0), SEC);
    void *head;

    assert_non_null(r);
    head = kvp_pb_unpack(&pb, type, &r->frame);
    assert_non_null(head);
    memcpy(head_out, head, type->sizeof_message);
    kvp_pb_free(&pb, head);
    reply_free(r);
}

Kvp__Pb__DrainReply
ask_drain(peer_t *who, Kvp__Pb__Drain msg)
{
    Kvp__Pb__DrainReply got;

    ask_head(who, KVP_OP_DRAIN, &msg.base, &kvp__pb__drain_reply__descriptor, &got);
    got.detail = NULL;
    return got;
}

uint32_t
home_of(peer_t *who, const char *key)
{
    kvp_wire_loc_t loc;
    uint64_t ticket;

    assert_int_equal(get(who, key, &ticket, &loc), KVP_OK);
    release(who, ticket);
    return loc.segment_id;
}
