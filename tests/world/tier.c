/* SPDX-License-Identifier: Apache-2.0
 * A node's SSD tier: which versions it has, how it obeys orders about them, and how it mounts. */
#include "tests/world/priv.h"

#include <stdio.h>

tiered_t *
tiered_find(mem_t *mem, kvp_digest_t digest)
{
    for (uint32_t i = 0; i < mem->tiered_n; i++)
        if (kvp_digest_eq(mem->tiered[i].rec.digest, digest)) return &mem->tiered[i];
    return NULL;
}

static void
write_one(mem_t *mem, const chunk_t *c, const kvp_wire_demote_t *rec)
{
    const kvp_desc_t *desc = &c->descs[rec->at.slot];
    tiered_t *at = tiered_find(mem, desc->digest);

    if (at == NULL) {
        mem->tiered = realloc(mem->tiered, (mem->tiered_n + 1) * sizeof *mem->tiered);
        at = &mem->tiered[mem->tiered_n++];
    }
    *at = (tiered_t){.rec = {desc->digest, desc->version}, .desc = *desc, .lineage = rec->lineage};
    assert_true(strlen(c->keys[rec->at.slot]) < sizeof at->key);
    strcpy(at->key, c->keys[rec->at.slot]);
}

/* The newest versions of a test have their descriptors (write_object). */
void
node_demote(peer_t *n, const kvp_frame_t *f)
{
    const kvp_wire_demote_t *recs;
    Kvp__Pb__Retire *head;
    uint8_t *flags;
    kvp_pb_t pb;

    recs = (const void *)retire_read(f, &pb, &head);
    flags = calloc(head->n + 1, 1);
    for (uint32_t i = 0; i < head->n; i++) {
        chunk_t *c = mem_chunk(n->mem, recs[i].at.chunk);
        uint32_t slot = recs[i].at.slot;

        if (c->words[slot] != kvp_word_make(recs[i].at.generation, KVP_DESC_SEALED) || c->descs == NULL) continue;
        if (n->mem->is_tier_full) continue;
        write_one(n->mem, c, &recs[i]);
        flags[i] = 1;
    }
    n->demotes_n += head->n;
    if (n->policy != NODE_STOPPED && n->policy != NODE_MUTE && !n->mem->is_tier_slow)
        answer_back(n, f, KVP_OK, flags, head->n);
    free(flags);
    kvp_pb_free(&pb, head);
}

static void
seal(chunk_t *c, uint32_t slot, uint64_t sealed, const kvp_desc_t *desc, const char *key)
{
    if (c->descs == NULL) {
        c->descs = calloc(c->geo.slots_max, sizeof *c->descs);
        c->keys = calloc(c->geo.slots_max, sizeof *c->keys);
    }
    c->words[slot] = sealed;
    c->descs[slot] = *desc;
    c->descs[slot].word = sealed;
    free(c->keys[slot]);
    c->keys[slot] = strdup(key);
}

static uint8_t
stage_one(peer_t *n, const kvp_wire_stage_t *rec)
{
    const tiered_t *at = tiered_find(n->mem, rec->digest);
    chunk_t *c = mem_chunk(n->mem, rec->chunk);
    uint64_t sealed = kvp_word_make(rec->generation, KVP_DESC_SEALED);

    if (at == NULL || at->rec.version != rec->version) return KVP_STAGE_GONE;
    assert_int_equal(at->desc.len, rec->len);
    if (n->mem->is_stage_failing || kvp_word_generation(c->words[rec->slot]) >= rec->generation)
        return KVP_STAGE_FAILED;
    seal(c, rec->slot, sealed, &at->desc, at->key);
    c->descs[rec->slot].offset = rec->offset;
    c->descs[rec->slot].key_off = rec->key_off;
    return KVP_STAGE_OK;
}

static uint8_t
copy_one(peer_t *n, const kvp_wire_copy_t *rec)
{
    chunk_t *to = mem_chunk(n->mem, rec->to_chunk), *from = NULL;
    uint64_t sealed = kvp_word_make(rec->to_generation, KVP_DESC_SEALED);

    if (n->mem->copy_answer != KVP_COPY_OK) return n->mem->copy_answer;
    kvp_list_foreach (pos, &n->world->mems) {
        mem_t *mem = kvp_list_entry(pos, mem_t, link);

        if (mem->segment_id == rec->segment_id) from = mem_chunk(mem, rec->chunk);
    }
    if (from == NULL || from->words[rec->slot] != kvp_word_make(rec->generation, KVP_DESC_SEALED))
        return KVP_COPY_STALE;
    if (kvp_word_generation(to->words[rec->to_slot]) >= rec->to_generation) return KVP_COPY_FAILED;
    if (from->descs == NULL || from->keys[rec->slot] == NULL) {
        to->words[rec->to_slot] = sealed; /* put without a descriptor */
        return KVP_COPY_OK;
    }
    seal(to, rec->to_slot, sealed, &from->descs[rec->slot], from->keys[rec->slot]);
    to->descs[rec->to_slot].offset = rec->to_offset;
    to->descs[rec->to_slot].key_off = rec->to_key_off;
    return KVP_COPY_OK;
}

void
node_copy(peer_t *n, const kvp_frame_t *f)
{
    const kvp_wire_copy_t *recs = (const kvp_wire_copy_t *)f->tail;
    uint32_t count = (uint32_t)(f->tail_len / sizeof *recs);
    uint8_t *flags = calloc(count + 1, 1);

    for (uint32_t i = 0; i < count; i++)
        flags[i] = copy_one(n, &recs[i]);
    n->copies_n += count;
    if (n->policy != NODE_STOPPED && n->policy != NODE_MUTE) answer_back(n, f, KVP_OK, flags, count);
    free(flags);
}

void
node_stage(peer_t *n, const kvp_frame_t *f)
{
    const kvp_wire_stage_t *recs = (const kvp_wire_stage_t *)f->tail;
    uint32_t count = (uint32_t)(f->tail_len / sizeof *recs);
    uint8_t *flags = calloc(count + 1, 1);

    for (uint32_t i = 0; i < count; i++)
        flags[i] = stage_one(n, &recs[i]);
    n->stages_n += count;
    if (n->policy != NODE_STOPPED && n->policy != NODE_MUTE) answer_back(n, f, KVP_OK, flags, count);
    free(flags);
}

void
tier_drop(mem_t *mem, kvp_digest_t digest, uint64_t version)
{
    tiered_t *at = tiered_find(mem, digest);

    if (at != NULL && at->rec.version <= version) *at = mem->tiered[--mem->tiered_n];
}

void
node_drop(peer_t *n, const kvp_frame_t *f)
{
    const kvp_wire_tiered_t *recs = (const kvp_wire_tiered_t *)f->tail;

    for (size_t i = 0; n->policy != NODE_STOPPED && i < f->tail_len / sizeof *recs; i++)
        tier_drop(n->mem, recs[i].digest, recs[i].version);
    if (n->policy != NODE_STOPPED && n->policy != NODE_MUTE) answer_back(n, f, KVP_OK, NULL, 0);
}

static void
append_whole(const tiered_t *at, kvp_buf_t *tail)
{
    uint8_t key[sizeof at->key] = {0};
    const kvp_desc_t *d = &at->desc;
    kvp_wire_whole_t rec = {d->digest,   d->version, d->key_hash2, d->len,    d->sum,
                            at->lineage, d->tenant,  d->flags,     d->key_len};

    memcpy(key, at->key, d->key_len);
    kvp_buf_append(tail, &rec, sizeof rec);
    kvp_buf_append(tail, key, kvp_align_up(d->key_len, 8));
}

static void
report(peer_t *n, uint32_t segment_id, bool is_whole)
{
    Kvp__Pb__TierReport msg = KVP__PB__TIER_REPORT__INIT;
    mem_t *mem = n->mem;
    kvp_buf_t tail = {0};
    reply_t *r;

    msg.segment_id = segment_id;
    msg.n = mem->tiered_n;
    msg.is_last = true;
    for (uint32_t i = 0; i < mem->tiered_n; i++)
        if (is_whole)
            append_whole(&mem->tiered[i], &tail);
        else
            kvp_buf_append(&tail, &mem->tiered[i].rec, sizeof mem->tiered[i].rec);
    r = peer_wait(n, peer_send(n, KVP_OP_TIER_REPORT, 0, &msg.base, tail.data, tail.len), SEC);
    assert_non_null(r);
    assert_int_equal(r->frame.tail_len, msg.n);
    for (uint32_t i = msg.n; i-- > 0;)
        if (r->frame.tail[i] != 0) tier_drop(mem, mem->tiered[i].rec.digest, mem->tiered[i].rec.version);
    reply_free(r);
    kvp_buf_fini(&tail);
}

uint32_t
node_mount_tier(peer_t *n)
{
    Kvp__Pb__Mount msg = KVP__PB__MOUNT__INIT;
    Kvp__Pb__MountReply *head;
    mem_t *mem = n->mem;
    uint8_t uuid[16] = {0xaa};
    uint32_t id, has_report;
    char name[64];
    kvp_pb_t pb;
    reply_t *r;

    snprintf(name, sizeof name, "%s/ssd", mem->name);
    memcpy(uuid + 1, mem->name, kvp_min_u64(strlen(mem->name), 15));
    n->is_mounting_tier = true; /* the answer is not about memory */
    msg.name = name;
    msg.uuid = (ProtobufCBinaryData){sizeof uuid, uuid};
    msg.size_bytes = 1 << 30;
    msg.addr = (char *)"10.0.0.1:7000";
    msg.is_fresh = msg.is_tier = true;
    msg.term = mem->term;
    msg.stalled_devices = mem->stalled_devices;
    r = peer_wait(n, peer_send(n, KVP_OP_MOUNT, 0, &msg.base, NULL, 0), SEC);
    n->is_mounting_tier = false;
    assert_non_null(r);
    head = kvp_pb_unpack(&pb, &kvp__pb__mount_reply__descriptor, &r->frame);
    assert_non_null(head);
    assert_int_equal(head->err, KVP_OK);
    id = head->segment_id;
    has_report = head->report;
    kvp_pb_free(&pb, head);
    reply_free(r);
    if (has_report != 0) report(n, id, has_report == 2);
    return id;
}
