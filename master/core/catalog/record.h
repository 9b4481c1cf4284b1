/* SPDX-License-Identifier: Apache-2.0
 * Records of the log about objects, tenants and segments, and the commits that may still be lost. */
#ifndef KVP_MASTER_CORE_CATALOG_RECORD_H
#define KVP_MASTER_CORE_CATALOG_RECORD_H

#include "common/hash.h"
#include "master/core/catalog/catalog.h"
#include "proto/jrec.h"

/* A commit that may be lost. */
typedef struct {
    uint64_t after; /* position after its record */
    kvp_digest_t digest;
    uint64_t version;
} kvp_fresh_commit_t;

/* These functions append to cat->log, and have no effect while it is not open.
 * kvp_record_commit: an object with its version; it is fresh until its record is durable.
 * kvp_record_again: an object whose places changed; nothing if it is not committed.
 * kvp_record_gone: an object that is about to be removed, o if it still exists (its key is recorded
 * with conf.log_names_gone), else NULL. kvp_record_segment: memory, before its first object.
 * kvp_record_segment_over: memory without any object left. kvp_record_tenant: its name, epoch and
 * bumps. kvp_record_forgotten: bumps of the tenant up to the version, by the version's term.
 * kvp_record_oldest: from here on nothing is unknown but attempts that are under way. */
void kvp_record_commit(kvp_catalog_t *cat, uint32_t oid, kvp_digest_t digest);
void kvp_record_again(kvp_catalog_t *cat, uint32_t oid);
void kvp_record_gone(kvp_catalog_t *cat, const kvp_obj_t *o, kvp_digest_t digest, uint64_t version, kvp_gone_t why);
void kvp_record_segment(kvp_catalog_t *cat, const kvp_segment_t *g);
void kvp_record_segment_over(kvp_catalog_t *cat, const kvp_segment_t *g);
void kvp_record_tenant(kvp_catalog_t *cat, const kvp_tenant_t *t);
void kvp_record_forgotten(kvp_catalog_t *cat, uint32_t tenant, uint64_t version);
void kvp_record_oldest(kvp_catalog_t *cat);
/* kvp_record_places: the record of a committed object again, while others change. */
void kvp_record_places(kvp_catalog_t *cat, const kvp_obj_t *o, kvp_digest_t digest);

/* kvp_record_make_commit fills in the record of a committed object, but for its head. False: the
 * object lies nowhere. kvp_record_make_tenant does it for a tenant. */
bool kvp_record_make_commit(const kvp_catalog_t *cat, const kvp_obj_t *o, kvp_digest_t digest, kvp_jrec_any_t *rec);
void kvp_record_make_tenant(const kvp_tenant_t *t, kvp_jrec_any_t *rec);

/* kvp_record_durable: the log is durable up to the position, so earlier commits are not fresh any
 * more. False: the step's budget is used up before all of them were looked at. */
bool kvp_record_durable(kvp_catalog_t *cat, uint64_t to);

#endif
