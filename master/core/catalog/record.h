/* SPDX-License-Identifier: Apache-2.0
 * The log's records about objects, tenants and segments, and the commits whose records may still be lost in a crash. */
#ifndef KVP_MASTER_CORE_CATALOG_RECORD_H
#define KVP_MASTER_CORE_CATALOG_RECORD_H

#include "common/hash.h"
#include "master/core/catalog/catalog.h"
#include "proto/cause.h"
#include "proto/jrec.h"

/* A commit whose log record may be lost in a crash. */
typedef struct {
    uint64_t after; /* log position after the commit's record */
    kvp_digest_t digest;
    uint64_t version;
} kvp_fresh_commit_t;

/* These functions append to cat->log. They have no effect while the log is not open. kvp_record_commit records an
 * object with its version; the commit is fresh until its record is durable. kvp_record_again records an object whose
 * places changed, if it is committed. kvp_record_gone records the removal of an object; o is the object's record,
 * NULL if it is freed (the log record has the key only with conf.log_names_gone). kvp_record_segment records a
 * segment, before its first object. kvp_record_segment_over records that no object is left in the segment.
 * kvp_record_drain records that the
 * segment is being drained, or, without g->drain, that the drain has ended. kvp_record_tenant records the tenant's
 * name, epoch and bumps. kvp_record_forgotten records that the tenant's bumps up to the version were forgotten.
 * kvp_record_oldest records a generation: every put attempt with a lower generation has ended, and if it was committed,
 * the log has its commit. */
void kvp_record_commit(kvp_catalog_t *cat, uint32_t oid, kvp_digest_t digest);
void kvp_record_again(kvp_catalog_t *cat, uint32_t oid);
void kvp_record_gone(kvp_catalog_t *cat, const kvp_obj_t *o, kvp_digest_t digest, uint64_t version, kvp_gone_t why,
                     kvp_cause_t cause);
void kvp_record_segment(kvp_catalog_t *cat, const kvp_segment_t *g);
void kvp_record_segment_over(kvp_catalog_t *cat, const kvp_segment_t *g);
void kvp_record_drain(kvp_catalog_t *cat, const kvp_segment_t *g);
void kvp_record_tenant(kvp_catalog_t *cat, const kvp_tenant_t *t);
void kvp_record_forgotten(kvp_catalog_t *cat, uint32_t tenant, uint64_t version);
void kvp_record_oldest(kvp_catalog_t *cat);
/* kvp_record_places writes the record of a committed object again, in the middle of a change of its places. */
void kvp_record_places(kvp_catalog_t *cat, const kvp_obj_t *o, kvp_digest_t digest);

/* kvp_record_make_commit fills in the log record of a committed object, except rec->head. Returns false if the object
 * has no place. kvp_record_make_tenant does the same for a tenant. */
bool kvp_record_make_commit(const kvp_catalog_t *cat, const kvp_obj_t *o, kvp_digest_t digest, kvp_jrec_any_t *rec);
void kvp_record_make_tenant(const kvp_tenant_t *t, kvp_jrec_any_t *rec);

/* kvp_record_durable marks the commits before log position `to`, up to which the log is durable, as not fresh any more.
 * Returns false if the step's budget was used up before all these commits were marked. */
bool kvp_record_durable(kvp_catalog_t *cat, uint64_t to);

#endif
