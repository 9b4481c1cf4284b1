/* SPDX-License-Identifier: Apache-2.0
 * A node's SSD tier: which versions it has, how it obeys orders about them, and how it mounts.
 */
#include "tests/world/priv.h"

#include <stdio.h>

static tiered_t *
find(mem_t *mem, kvp_digest_t digest)
{
    for (uint32_t i = 0; i < mem->tiered_n; i++)
        if (kvp_digest_eq(mem->tiered[i].rec.digest, digest)) return &mem->tiered[i];
    return NULL;
}

static void
write_one(mem_t *mem, const kvp_desc_t *desc)
{
    tiered_t *at = find(mem, desc->digest);

    if (at == NULL) {
        mem->tiered = realloc(mem->tiered, (mem->tiered_n + 1) * sizeof *mem->tiered);
        at = &mem->tiered[mem->tiered_n++];
    }
    *at = (tiered_t){.rec = {desc->digest, desc->version}, .desc = *desc};
}

/* The newest versions of a test have their descriptors (write_object). */
void
node_demote(peer_t *n, const kvp_frame_t *f)
{
    const kvp_wire_slot_t *slots;
    Kvp__Pb__Retire *head;
    uint8_t *flags;
    kvp_pb_t pb;

    slots = retire_read(f, &pb, &head);
    flags = calloc(head->n + 1, 1);
    for (uint32_t i = 0; i < head->n; i++) {
        chunk_t *c = mem_chunk(n->mem, slots[i].chunk);
        uint32_t slot = slots[i].slot;

        if (c->words[slot] != kvp_word_make(slots[i].generation, KVP_DESC_SEALED) || c->descs == NULL) continue;
        if (n->mem->is_tier_full) continue;
        write_one(n->mem, &c->descs[slot]);
        flags[i] = 1;
    }
    n->demotes_n += head->n;
    if (n->policy != NODE_STOPPED && n->policy != NODE_MUTE) answer_back(n, f, KVP_OK, flags, head->n);
    free(flags);
    kvp_pb_free(&pb, head);
}

static uint8_t
stage_one(peer_t *n, const kvp_wire_stage_t *rec)
{
    const tiered_t *at = find(n->mem, rec->digest);
    chunk_t *c = mem_chunk(n->mem, rec->chunk);
    uint64_t sealed = kvp_word_make(rec->generation, KVP_DESC_SEALED);

    if (at == NULL || at->rec.version != rec->version) return KVP_STAGE_GONE;
    assert_int_equal(at->desc.len, rec->len);
    if (n->mem->is_stage_failing || kvp_word_generation(c->words[rec->slot]) >= rec->generation)
        return KVP_STAGE_FAILED;
    c->words[rec->slot] = sealed;
    if (c->descs == NULL) {
        c->descs = calloc(c->geo.slots_max, sizeof *c->descs);
        c->keys = calloc(c->geo.slots_max, sizeof *c->keys);
    }
    c->descs[rec->slot] = at->desc;
    c->descs[rec->slot].word = sealed;
    return KVP_STAGE_OK;
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
    tiered_t *at = find(mem, digest);

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
report(peer_t *n, uint32_t segment_id)
{
    Kvp__Pb__TierReport msg = KVP__PB__TIER_REPORT__INIT;
    kvp_wire_tiered_t *recs = calloc(n->mem->tiered_n + 1, sizeof *recs);
    reply_t *r;

    for (uint32_t i = 0; i < n->mem->tiered_n; i++)
        recs[i] = n->mem->tiered[i].rec;
    msg.segment_id = segment_id;
    msg.n = n->mem->tiered_n;
    msg.is_last = true;
    r = peer_wait(n, peer_send(n, KVP_OP_TIER_REPORT, 0, &msg.base, recs, msg.n * sizeof *recs), SEC);
    assert_non_null(r);
    assert_int_equal(r->frame.tail_len, msg.n);
    for (uint32_t i = 0; i < msg.n; i++)
        if (r->frame.tail[i] != 0) tier_drop(n->mem, recs[i].digest, recs[i].version);
    reply_free(r);
    free(recs);
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
    if (has_report != 0) report(n, id);
    return id;
}
