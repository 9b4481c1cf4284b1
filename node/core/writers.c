/* SPDX-License-Identifier: Apache-2.0
 * The attached clients, and the processes that may still store into the memory without our control: a record for each
 * incarnation of each process, kept as long as the process may have a writable mapping of the memory. */
#include "node/core/priv.h"

#include "common/mutate.h"

#include <stdlib.h>

void
kvp_node_proc_init(kvp_node_proc_t *proc)
{
    kvp_list_init(&proc->records);
    kvp_list_init(&proc->idle);
    proc->left = 0;
    proc->is_dead = false;
}

void
kvp_node_att_init(kvp_node_att_t *att)
{
    *att = (kvp_node_att_t){.record = NULL};
    kvp_list_init(&att->link);
}

static kvp_list_t *
bucket_of(const kvp_node_core_t *core, kvp_list_t buckets[KVP_NODE_OWNER_BUCKETS], uint64_t incarnation)
{
    return &buckets[kvp_mix64(&core->mix, incarnation, 0) >> 56];
}

kvp_node_owner_t *
kvp_node_owner_find(kvp_node_core_t *core, uint64_t incarnation)
{
    kvp_list_t *bucket = bucket_of(core, core->owners, incarnation);

    kvp_list_foreach (link, bucket) {
        kvp_node_owner_t *owner = kvp_list_entry(link, kvp_node_owner_t, bucket);
        if (owner->incarnation == incarnation) return owner;
    }
    return NULL;
}

static kvp_node_owner_t *
owner_create(kvp_node_core_t *core, uint64_t incarnation)
{
    kvp_node_owner_t *owner = calloc(1, sizeof *owner);

    if (owner == NULL) return NULL;
    owner->incarnation = incarnation;
    kvp_list_init(&owner->writers);
    kvp_list_init(&owner->waiting);
    kvp_list_init(&owner->bucket);
    kvp_list_add_tail(bucket_of(core, core->owners, incarnation), &owner->bucket);
    return owner;
}

static kvp_node_record_t *
record_find(kvp_node_proc_t *proc, uint64_t incarnation)
{
    kvp_list_foreach (link, &proc->records) {
        kvp_node_record_t *r = kvp_list_entry(link, kvp_node_record_t, of_proc);
        if (r->incarnation == incarnation) return r;
    }
    return NULL;
}

static kvp_node_record_t *
record_create(kvp_node_proc_t *proc, uint64_t incarnation)
{
    kvp_node_record_t *r = calloc(1, sizeof *r);

    if (r == NULL) return NULL;
    r->incarnation = incarnation;
    r->proc = proc;
    kvp_list_init(&r->of_proc);
    kvp_list_init(&r->of_owner);
    /* adds the record at the head of the process's list, because the newest record is looked up first */
    kvp_list_add_head(&proc->records, &r->of_proc);
    kvp_list_del(&proc->idle);
    return r;
}

/* record_clear ends the writer's part of a record: it is proved that the process stores nothing more under this
 * incarnation. */
static void
record_clear(kvp_node_core_t *core, kvp_node_record_t *r)
{
    kvp_node_owner_t *owner = r->owner;

    if (owner == NULL) return;
    if (r->attachments == 0) r->proc->left--;
    kvp_list_del(&r->of_owner);
    r->owner = NULL;
    if (!kvp_list_is_empty(&owner->writers)) return;
    kvp_node_extents_proved(core, owner);
    kvp_list_del(&owner->bucket);
    if (owner->is_old && --core->old_owners == 0) kvp_node_old_writers_gone(core);
    free(owner);
}

void
kvp_node_owners_are_old(kvp_node_core_t *core)
{
    core->old_owners = 0;
    for (size_t i = 0; i < KVP_NODE_OWNER_BUCKETS; i++) {
        kvp_list_foreach (link, &core->owners[i]) {
            kvp_list_entry(link, kvp_node_owner_t, bucket)->is_old = true;
            core->old_owners++;
        }
    }
}

/* record_drop_if_done frees a record that is neither attached nor a writer. */
static void
record_drop_if_done(kvp_node_core_t *core, kvp_node_record_t *r)
{
    kvp_node_proc_t *proc = r->proc;

    if (r->attachments > 0 || r->owner != NULL) return;
    kvp_list_del(&r->of_proc);
    free(r);
    if (!kvp_list_is_empty(&proc->records)) return;
    kvp_list_del(&proc->idle);
    kvp_list_add_tail(&core->idle, &proc->idle);
}

static kvp_node_presence_t *
presence_get(kvp_node_core_t *core, uint64_t incarnation)
{
    kvp_list_t *bucket = bucket_of(core, core->present, incarnation);
    kvp_node_presence_t *p;

    kvp_list_foreach (link, bucket) {
        p = kvp_list_entry(link, kvp_node_presence_t, bucket);
        if (p->incarnation == incarnation) return p;
    }
    p = calloc(1, sizeof *p);
    if (p == NULL) return NULL;
    p->incarnation = incarnation;
    kvp_list_init(&p->bucket);
    kvp_list_add_tail(bucket, &p->bucket);
    return p;
}

static bool
presence_drop_if_over(kvp_node_presence_t *p)
{
    if (p == NULL || p->attachments > 0) return false;
    kvp_list_del(&p->bucket);
    free(p);
    return true;
}

kvp_err_t
kvp_node_core_attach(kvp_node_core_t *core, kvp_node_att_t *att, uint64_t incarnation, kvp_node_proc_t *proc)
{
    kvp_node_presence_t *presence = NULL;
    kvp_node_record_t *record = NULL;
    kvp_err_t err = KVP_OK;

    if (incarnation == 0 || (proc != NULL && proc->is_dead))
        err = KVP_INVALID;
    else if (kvp_node_core_is_fenced(core, incarnation) && KVP_RULE(FENCED_ATTACH))
        err = KVP_FENCED;
    else if (core->stats.attached >= core->conf.max_attachments || core->rising != 0)
        /* BUSY during the sweep for a new term: an attachment made now would count as one of the older term */
        err = KVP_BUSY;
    if (err == KVP_OK) {
        presence = presence_get(core, incarnation);
        if (presence == NULL) err = KVP_NOMEM;
    }
    if (err == KVP_OK && proc != NULL) {
        record = record_find(proc, incarnation);
        if (record == NULL) record = record_create(proc, incarnation);
        if (record == NULL) err = KVP_NOMEM;
    }
    if (err != KVP_OK) {
        (void)presence_drop_if_over(presence);
        core->stats.refused++;
        return err;
    }
    presence->attachments++;
    if (record != NULL) {
        if (record->attachments == 0 && record->owner != NULL) proc->left--;
        record->attachments++;
    }
    att->incarnation = incarnation;
    att->record = record;
    att->presence = presence;
    kvp_list_add_tail(&core->attachments, &att->link);
    core->stats.attached++;
    return KVP_OK;
}

static kvp_err_t
own_record(kvp_node_core_t *core, kvp_node_record_t *r)
{
    kvp_node_owner_t *owner = kvp_node_owner_find(core, r->incarnation);

    if (owner == NULL) owner = owner_create(core, r->incarnation);
    if (owner == NULL) return KVP_NOMEM;
    r->owner = owner;
    kvp_list_add_tail(&owner->writers, &r->of_owner);
    return KVP_OK;
}

kvp_err_t
kvp_node_core_open_write(kvp_node_core_t *core, kvp_node_att_t *att)
{
    kvp_node_record_t *r = att->record;

    /* No record for a dead process: its death was handled before, so nothing would end the record. */
    if (r == NULL || r->proc->is_dead || att->is_closing) return KVP_INVALID;
    if (r->owner != NULL) return KVP_OK;
    if (r->proc->left >= KVP_NODE_LEFT_MAX) return KVP_LIMIT;
    return own_record(core, r);
}

kvp_err_t
kvp_node_core_restore_writer(kvp_node_core_t *core, kvp_node_proc_t *proc, uint64_t incarnation)
{
    kvp_node_record_t *r = proc->is_dead ? NULL : record_find(proc, incarnation);
    kvp_err_t err;

    if (proc->is_dead) return KVP_INVALID;
    if (!KVP_RULE(KEPT_WRITERS)) return KVP_OK;
    if (r == NULL) r = record_create(proc, incarnation);
    if (r == NULL) return KVP_NOMEM;
    if (r->owner != NULL) return KVP_OK;
    err = own_record(core, r);
    if (err != KVP_OK) {
        record_drop_if_done(core, r);
        return err;
    }
    /* no check against KVP_NODE_LEFT_MAX: the node's previous process admitted these incarnations */
    proc->left++;
    if (incarnation >> KVP_INCARNATION_SEQ_BITS < core->term && !r->owner->is_old) {
        r->owner->is_old = true;
        core->old_owners++;
    }
    return KVP_OK;
}

void
kvp_node_core_each_writer(kvp_node_core_t *core, void (*fn)(void *arg, kvp_node_proc_t *proc, uint64_t incarnation),
                          void *arg)
{
    for (size_t i = 0; i < KVP_NODE_OWNER_BUCKETS; i++) {
        kvp_list_foreach (bucket, &core->owners[i]) {
            kvp_list_foreach (link, &kvp_list_entry(bucket, kvp_node_owner_t, bucket)->writers) {
                const kvp_node_record_t *r = kvp_list_entry(link, kvp_node_record_t, of_owner);

                fn(arg, r->proc, r->incarnation);
            }
        }
    }
}

bool
kvp_node_core_detach(kvp_node_core_t *core, kvp_node_att_t *att)
{
    kvp_node_presence_t *presence = att->presence;
    kvp_node_record_t *r = att->record;

    if (presence == NULL) return false;
    kvp_list_del(&att->link);
    core->stats.attached--;
    kvp_node_att_init(att);
    presence->attachments--;
    if (r != NULL) {
        if (--r->attachments == 0 && r->owner != NULL) r->proc->left++;
        record_drop_if_done(core, r);
    }
    return presence_drop_if_over(presence);
}

static void
close_attachment(kvp_node_core_t *core, kvp_node_att_t *att)
{
    if (att->is_closing) return;
    att->is_closing = true;
    kvp_list_del(&att->link);
    kvp_list_add_tail(&core->closing, &att->link);
}

void
kvp_node_writers_close(kvp_node_core_t *core, bool is_all)
{
    kvp_list_foreach_safe (link, next, &core->attachments) {
        kvp_node_att_t *att = kvp_list_entry(link, kvp_node_att_t, link);
        if (is_all || kvp_node_core_is_fenced(core, att->incarnation)) close_attachment(core, att);
    }
}

kvp_err_t
kvp_node_core_drained(kvp_node_core_t *core, kvp_node_att_t *att, uint64_t incarnation)
{
    kvp_node_record_t *r;

    if (att->record == NULL) return KVP_INVALID;
    r = record_find(att->record->proc, incarnation);
    if (r == NULL) return KVP_OK; /* without a record the incarnation has no memory that it can write */
    record_clear(core, r);
    kvp_list_foreach_safe (link, next, &core->attachments) {
        kvp_node_att_t *other = kvp_list_entry(link, kvp_node_att_t, link);
        if (other->record == r) close_attachment(core, other);
    }
    record_drop_if_done(core, r);
    return KVP_OK;
}

/* record_end: the record's incarnation of a process can store nothing more to the node's memory. Frees the record if no
 * client is attached under that incarnation. */
static void
record_end(kvp_node_core_t *core, kvp_node_record_t *r)
{
    record_clear(core, r);
    record_drop_if_done(core, r);
}

void
kvp_node_core_process_dead(kvp_node_core_t *core, kvp_node_proc_t *proc)
{
    proc->is_dead = true;
    if (!KVP_RULE(PROOF_OF_DEATH)) return;
    kvp_list_foreach_safe (link, next, &proc->records) {
        record_end(core, kvp_list_entry(link, kvp_node_record_t, of_proc));
    }
}

void
kvp_node_writers_forget_memory(kvp_node_core_t *core)
{
    for (size_t i = 0; i < KVP_NODE_OWNER_BUCKETS; i++) {
        /* Ending the last writer's record of an owner (an incarnation) also frees the owner and takes it out of the
         * bucket, so each round fetches the first owner again. */
        while (!kvp_list_is_empty(&core->owners[i])) {
            kvp_node_owner_t *owner = kvp_list_first(&core->owners[i], kvp_node_owner_t, bucket);
            record_end(core, kvp_list_first(&owner->writers, kvp_node_record_t, of_owner));
        }
    }
}

kvp_node_att_t *
kvp_node_core_take_close(kvp_node_core_t *core)
{
    kvp_node_att_t *att;

    if (kvp_list_is_empty(&core->closing)) return NULL;
    att = kvp_list_first(&core->closing, kvp_node_att_t, link);
    kvp_list_del(&att->link);
    return att;
}

kvp_node_proc_t *
kvp_node_core_take_idle(kvp_node_core_t *core)
{
    kvp_node_proc_t *proc;

    if (kvp_list_is_empty(&core->idle)) return NULL;
    proc = kvp_list_first(&core->idle, kvp_node_proc_t, idle);
    kvp_list_del(&proc->idle);
    return proc;
}
