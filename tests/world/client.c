/* SPDX-License-Identifier: Apache-2.0
 * A client: what it asks, and what it does to memory. */
#include "tests/world/priv.h"

#include <stdio.h>

peer_t *
client_open_of(world_t *w, uint32_t tenant)
{
    peer_t *c = peer_open(w);

    c->tenant = tenant;
    assert_int_equal(peer_hello(c, KVP_ROLE_CLIENT, "client", "client-host"), KVP_OK);
    return c;
}

peer_t *
client_open(world_t *w)
{
    return client_open_of(w, 0);
}

static kvp_digest_t
own_digest(const peer_t *c, const char *key)
{
    return kvp_key_digest(c->world->conf.digest_seed, c->tenant_id, key, strlen(key));
}

kvp_digest_t
digest_of(const world_t *w, const char *key)
{
    return kvp_key_digest(w->conf.digest_seed, 0, key, strlen(key));
}

uint64_t
found(peer_t *c, const char *key, uint32_t *copies_out)
{
    Kvp__Pb__Get head = KVP__PB__GET__INIT;
    kvp_digest_t digest = kvp_key_digest(c->world->conf.digest_seed, c->tenant_id, key, strlen(key));
    uint64_t version = 0;
    reply_t *reply;
    places_t p;

    head.n = 1;
    head.no_hold = true;
    reply = peer_reply(c, peer_send(c, KVP_OP_GET, 0, &head.base, &digest, sizeof digest));
    if (reply == NULL) return 0;
    places_read(reply, &p);
    assert_int_equal(p.err, KVP_OK);
    if (p.objs[0].err == KVP_OK) version = p.objs[0].version;
    if (copies_out != NULL) *copies_out = p.objs[0].nloc;
    places_free(&p);
    return version;
}

uint64_t
put_begin(peer_t *c, put_t *puts, uint32_t n, uint32_t wait_ms)
{
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;

    head.wait_ms = wait_ms;
    return put_begin_with(c, puts, n, &head);
}

uint64_t
put_begin_with(peer_t *c, put_t *puts, uint32_t n, const Kvp__Pb__PutBegin *like)
{
    Kvp__Pb__PutBegin head = *like;
    kvp_wire_put_t *recs;
    uint32_t at = 0;
    kvp_buf_t tail;
    uint64_t id;

    kvp_buf_init(&tail, 0);
    recs = (kvp_wire_put_t *)kvp_buf_extend(&tail, n * sizeof *recs);
    for (uint32_t i = 0; i < n; i++) {
        head.has_groups |= puts[i].group.group.lo != 0 || puts[i].group.members != 0;
        head.has_lineages |= puts[i].lineage.is_told != 0 || puts[i].lineage.depth != 0;
        if (puts[i].key_len == 0) puts[i].key_len = (uint32_t)strlen(puts[i].key);
        puts[i].attempt = ++c->attempt_seq;
        recs[i] = (kvp_wire_put_t){
            .digest = kvp_key_digest(c->world->conf.digest_seed, c->tenant_id, puts[i].key, puts[i].key_len),
            .len = puts[i].len,
            .attempt = puts[i].attempt,
            .key_at = at,
            .key_len = puts[i].key_len,
        };
        at += puts[i].key_len;
    }
    for (uint32_t i = 0; head.has_groups && i < n; i++)
        kvp_buf_append(&tail, &puts[i].group, sizeof puts[i].group);
    for (uint32_t i = 0; head.has_lineages && i < n; i++)
        kvp_buf_append(&tail, &puts[i].lineage, sizeof puts[i].lineage);
    for (uint32_t i = 0; i < n; i++)
        kvp_buf_append(&tail, puts[i].key, puts[i].key_len);
    head.n = n;
    id = peer_send(c, KVP_OP_PUT_BEGIN, 0, &head.base, tail.data, tail.len);
    kvp_buf_fini(&tail);
    return id;
}

void
places_read(reply_t *r, places_t *out)
{
    Kvp__Pb__Places *head;
    kvp_rd_t rd;
    kvp_pb_t pb;

    assert_non_null(r);
    head = kvp_pb_unpack(&pb, &kvp__pb__places__descriptor, &r->frame);
    assert_non_null(head);
    *out = (places_t){
        .err = head->err,
        .n = head->n,
        .nloc = head->nloc,
        .retry_ms = head->retry_ms,
        .ticket = head->ticket,
        .reply = r,
    };
    kvp_pb_free(&pb, head);
    kvp_rd_init(&rd, r->frame.tail, r->frame.tail_len);
    out->objs = kvp_rd_array(&rd, out->n, sizeof *out->objs);
    out->locs = kvp_rd_array(&rd, out->nloc, sizeof *out->locs);
    assert_false(rd.is_bad);
}

void
places_free(places_t *p)
{
    reply_free(p->reply);
}

kvp_err_t
plain_result(reply_t *r)
{
    Kvp__Pb__Reply *head;
    kvp_err_t err;
    kvp_pb_t pb;

    assert_non_null(r);
    head = kvp_pb_unpack(&pb, &kvp__pb__reply__descriptor, &r->frame);
    assert_non_null(head);
    err = head->err;
    kvp_pb_free(&pb, head);
    reply_free(r);
    return err;
}

/* The first of the i32 behind a Reply. */
static kvp_err_t
first_result(reply_t *r)
{
    int32_t result;

    assert_non_null(r);
    assert_true(r->frame.tail_len >= sizeof result);
    memcpy(&result, r->frame.tail, sizeof result);
    assert_int_equal(plain_result(r), KVP_OK);
    return result;
}

kvp_err_t
commit(peer_t *c, uint64_t attempt, uint64_t sum)
{
    return commit_copies(c, attempt, sum, 1);
}

kvp_err_t
commit_copies(peer_t *c, uint64_t attempt, uint64_t sum, uint32_t sealed)
{
    Kvp__Pb__PutCommit head = KVP__PB__PUT_COMMIT__INIT;
    kvp_wire_commit_t rec = {.attempt = attempt, .sum = sum, .replicas = sealed};

    head.n = 1;
    return first_result(peer_wait(c, peer_send(c, KVP_OP_PUT_COMMIT, 0, &head.base, &rec, sizeof rec), 100 * MS));
}

kvp_err_t
abort_put(peer_t *c, uint64_t attempt, bool is_drained)
{
    Kvp__Pb__PutAbort head = KVP__PB__PUT_ABORT__INIT;

    head.n = 1;
    head.is_drained = is_drained;
    return first_result(peer_reply(c, peer_send(c, KVP_OP_PUT_ABORT, 0, &head.base, &attempt, sizeof attempt)));
}

kvp_err_t
write_place(world_t *w, const kvp_wire_loc_t *loc)
{
    mem_t *mem = mem_find(w, loc->segment_id);
    uint64_t writing = kvp_word_make(loc->generation, KVP_DESC_WRITING);
    uint64_t *word;

    if (mem == NULL) return KVP_NODE_LOST;
    word = &mem_chunk(mem, loc->chunk)->words[loc->slot];
    if (!kvp_word_may_become(*word, writing)) return KVP_STALE;
    *word = writing;
    *word = kvp_word_make(loc->generation, KVP_DESC_SEALED);
    return KVP_OK;
}

kvp_err_t
write_object(peer_t *c, const kvp_wire_loc_t *loc, const kvp_wire_obj_t *obj, const char *key)
{
    return write_object_as(c, loc, obj, &(put_t){.key = key}, KVP_PIN_NONE);
}

kvp_err_t
write_object_as(peer_t *c, const kvp_wire_loc_t *loc, const kvp_wire_obj_t *obj, const put_t *what, uint32_t pin)
{
    const char *key = what->key;
    uint64_t seed = c->world->conf.digest_seed;
    mem_t *mem = mem_find(c->world, loc->segment_id);
    kvp_err_t err = write_place(c->world, loc);
    chunk_t *k;

    if (err != KVP_OK) return err;
    k = mem_chunk(mem, loc->chunk);
    if (k->descs == NULL) {
        k->descs = calloc(k->geo.slots_max, sizeof *k->descs);
        k->keys = calloc(k->geo.slots_max, sizeof *k->keys);
    }
    k->descs[loc->slot] = (kvp_desc_t){
        .word = kvp_word_make(loc->generation, KVP_DESC_SEALED),
        .version = obj->version,
        .digest = own_digest(c, key),
        .key_hash2 = kvp_key_hash2(seed, c->tenant_id, key, strlen(key)),
        .offset = loc->offset,
        .len = obj->len,
        .sum = obj->len * 3,
        .tenant = c->tenant_id,
        .group = what->group.group,
        .group_n = what->group.members,
        .group_member = what->group.member,
        .key_off = loc->key_off,
        .key_len = (uint16_t)strlen(key),
        .flags = pin & KVP_DESC_PIN,
    };
    kvp_desc_seal(&k->descs[loc->slot]);
    free(k->keys[loc->slot]);
    k->keys[loc->slot] = strdup(key);
    return KVP_OK;
}

static kvp_err_t
put_begin_wait(peer_t *c, const char *key, uint64_t len, uint32_t wait_ms, uint64_t *attempt_out,
               kvp_wire_loc_t *loc_out)
{
    put_t one = {.key = key, .len = len};
    uint64_t id = put_begin(c, &one, 1, wait_ms);
    places_t places;
    kvp_err_t err;

    places_read(peer_wait(c, id, (wait_ms + 100) * MS), &places);
    err = places.err == KVP_OK ? places.objs[0].err : places.err;
    if (err == KVP_OK) {
        assert_int_equal(places.objs[0].len, len);
        *attempt_out = one.attempt;
        *loc_out = places.locs[0];
    }
    places_free(&places);
    return err;
}

kvp_err_t
put_place(peer_t *c, const char *key, uint64_t len, uint64_t *attempt_out, kvp_wire_loc_t *loc_out)
{
    return put_begin_wait(c, key, len, 1000, attempt_out, loc_out);
}

kvp_err_t
put_wait(peer_t *c, const char *key, uint64_t len, uint32_t wait_ms)
{
    kvp_wire_loc_t loc = {0};
    uint64_t attempt = 0;
    kvp_err_t err = put_begin_wait(c, key, len, wait_ms, &attempt, &loc);

    if (err != KVP_OK) return err;
    assert_int_equal(write_place(c->world, &loc), KVP_OK);
    return commit(c, attempt, len * 3);
}

kvp_err_t
put(peer_t *c, const char *key, uint64_t len)
{
    return put_wait(c, key, len, 1000);
}

void
put_fast(peer_t *c, const char *prefix, int digits, uint32_t n)
{
    put_fast_of(c, prefix, digits, n, 64);
}

void
put_fast_of(peer_t *c, const char *prefix, int digits, uint32_t n, uint64_t len)
{
    enum { BATCH = 512 };
    Kvp__Pb__PutCommit head = KVP__PB__PUT_COMMIT__INIT;
    kvp_wire_commit_t *recs = calloc(BATCH, sizeof *recs);
    char(*text)[128] = calloc(BATCH, sizeof *text);
    put_t *puts = calloc(BATCH, sizeof *puts);

    for (uint32_t i = 0; i < n; i += BATCH) {
        reply_t *r;
        uint64_t id;

        head.n = (uint32_t)kvp_min_u64(BATCH, n - i);
        for (uint32_t k = 0; k < head.n; k++) {
            snprintf(text[k], sizeof text[k], "%s%0*u", prefix, digits, i + k);
            puts[k] = (put_t){.key = text[k], .len = len};
        }
        id = put_begin(c, puts, head.n, 0);
        r = peer_reply(c, id);
        assert_non_null(r);
        reply_free(r);
        for (uint32_t k = 0; k < head.n; k++)
            recs[k] = (kvp_wire_commit_t){.attempt = puts[k].attempt, .sum = 1, .replicas = 1};
        r = peer_reply(c, peer_send(c, KVP_OP_PUT_COMMIT, 0, &head.base, recs, head.n * sizeof *recs));
        assert_int_equal(plain_result(r), KVP_OK);
    }
    free(puts);
    free(text);
    free(recs);
}

kvp_err_t
get(peer_t *c, const char *key, uint64_t *ticket_out, kvp_wire_loc_t *loc_out)
{
    Kvp__Pb__Get head = KVP__PB__GET__INIT;
    kvp_digest_t digest = own_digest(c, key);
    places_t places;
    kvp_err_t err;

    head.n = 1;
    head.no_hold = ticket_out == NULL;
    places_read(peer_reply(c, peer_send(c, KVP_OP_GET, 0, &head.base, &digest, sizeof digest)), &places);
    err = places.err == KVP_OK ? places.objs[0].err : places.err;
    if (err == KVP_OK && loc_out != NULL) *loc_out = places.locs[0];
    if (ticket_out != NULL) {
        *ticket_out = places.ticket;
        assert_true((places.ticket != 0) == (err == KVP_OK));
    }
    places_free(&places);
    return err;
}

static bool
ask_exists(peer_t *c, const char *key, bool is_plain)
{
    Kvp__Pb__Exists head = KVP__PB__EXISTS__INIT;
    kvp_digest_t digest = own_digest(c, key);
    reply_t *r;
    bool is_there;

    head.n = 1;
    head.is_plain = is_plain;
    r = peer_reply(c, peer_send(c, KVP_OP_EXISTS, 0, &head.base, &digest, sizeof digest));
    assert_non_null(r);
    assert_int_equal(r->frame.tail_len, 1);
    is_there = r->frame.tail[0] != 0;
    assert_int_equal(plain_result(r), KVP_OK);
    return is_there;
}

bool
exists(peer_t *c, const char *key)
{
    return ask_exists(c, key, true);
}

bool
probe(peer_t *c, const char *key)
{
    return ask_exists(c, key, false);
}

void
release(peer_t *c, uint64_t ticket)
{
    Kvp__Pb__Release head = KVP__PB__RELEASE__INIT;

    head.n = 1;
    (void)peer_send(c, KVP_OP_RELEASE, KVP_FRAME_ONEWAY, &head.base, &ticket, sizeof ticket);
}

static uint64_t
remove_send(peer_t *c, kvp_digest_t digest, bool is_forced)
{
    Kvp__Pb__Remove head = KVP__PB__REMOVE__INIT;

    head.n = 1;
    head.force = is_forced;
    return peer_send(c, KVP_OP_REMOVE, 0, &head.base, &digest, sizeof digest);
}

kvp_err_t
remove_key(peer_t *c, const char *key, bool is_forced)
{
    return first_result(peer_wait(c, remove_send(c, own_digest(c, key), is_forced), 100 * MS));
}

uint64_t
remove_begun(peer_t *c, const char *key, bool is_forced)
{
    return remove_send(c, digest_of(c->world, key), is_forced);
}

uint64_t
remove_many(peer_t *c, const char *pattern, bool is_forced)
{
    Kvp__Pb__RemoveMany head = KVP__PB__REMOVE_MANY__INIT;

    head.pattern = (char *)pattern;
    head.force = is_forced;
    head.is_all = pattern[0] == '\0';
    return peer_send(c, KVP_OP_REMOVE_MANY, 0, &head.base, NULL, 0);
}

kvp_err_t
remove_many_result(reply_t *r, uint64_t *removed_out, uint64_t *held_out)
{
    Kvp__Pb__RemoveManyReply *head;
    kvp_err_t err;
    kvp_pb_t pb;

    assert_non_null(r);
    head = kvp_pb_unpack(&pb, &kvp__pb__remove_many_reply__descriptor, &r->frame);
    assert_non_null(head);
    err = head->err;
    if (removed_out != NULL) *removed_out = head->removed;
    if (held_out != NULL) *held_out = head->held;
    kvp_pb_free(&pb, head);
    reply_free(r);
    return err;
}

static uint64_t
look_up(peer_t *c, const char *const *keys, uint32_t n, bool is_prefix, bool is_groups, uint32_t ttl_ms,
        Kvp__Pb__LookupReply *reply_out, uint8_t *found_out)
{
    Kvp__Pb__Lookup head = KVP__PB__LOOKUP__INIT;
    Kvp__Pb__LookupReply *reply;
    kvp_digest_t *digests = calloc(n, sizeof *digests);
    kvp_pb_t pb;
    reply_t *r;

    for (uint32_t i = 0; i < n; i++)
        digests[i] = own_digest(c, keys[i]);
    head.n = n;
    head.is_prefix = is_prefix;
    head.is_groups = is_groups;
    head.ttl_ms = ttl_ms;
    r = peer_reply(c, peer_send(c, KVP_OP_LOOKUP, 0, &head.base, digests, n * sizeof *digests));
    free(digests);
    assert_non_null(r);
    reply = kvp_pb_unpack(&pb, &kvp__pb__lookup_reply__descriptor, &r->frame);
    assert_non_null(reply);
    assert_int_equal(reply->err, KVP_OK);
    *reply_out = *reply;
    reply_out->detail = NULL;
    assert_int_equal(reply->n, is_prefix ? 0 : n);
    assert_int_equal(r->frame.tail_len, reply->n);
    if (found_out != NULL) memcpy(found_out, r->frame.tail, reply->n);
    kvp_pb_free(&pb, reply);
    reply_free(r);
    return reply_out->ticket;
}

uint64_t
lookup(peer_t *c, const char *const *keys, uint32_t n, bool is_prefix, uint32_t ttl_ms, Kvp__Pb__LookupReply *reply_out,
       uint8_t *found_out)
{
    return look_up(c, keys, n, is_prefix, false, ttl_ms, reply_out, found_out);
}

uint64_t
lookup_groups(peer_t *c, const char *const *names, uint32_t n, bool is_prefix, uint32_t ttl_ms,
              Kvp__Pb__LookupReply *reply_out, uint8_t *found_out)
{
    return look_up(c, names, n, is_prefix, true, ttl_ms, reply_out, found_out);
}

kvp_wire_group_t
group_of(const peer_t *c, const char *name, uint32_t members, uint32_t member)
{
    return (kvp_wire_group_t){own_digest(c, name), members, member};
}

kvp_err_t
put_like(peer_t *c, const put_t *what, const Kvp__Pb__PutBegin *like)
{
    put_t one = *what;
    places_t places;
    kvp_err_t err;
    uint32_t n;

    places_read(peer_wait(c, put_begin_with(c, &one, 1, like), 2 * SEC), &places);
    err = places.objs[0].err;
    n = places.nloc;
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(write_object_as(c, &places.locs[i], &places.objs[0], what, like->pin), KVP_OK);
    places_free(&places);
    return err == KVP_OK ? commit_copies(c, one.attempt, what->len * 3, (1u << n) - 1) : err;
}
