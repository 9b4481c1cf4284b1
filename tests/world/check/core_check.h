/* SPDX-License-Identifier: Apache-2.0
 * What the master's core keeps twice, counted from one side and held against the other. */
#ifndef KVP_TESTS_WORLD_CHECK_CORE_CHECK_H
#define KVP_TESTS_WORLD_CHECK_CORE_CHECK_H

#include "master/core/base/heap.h"
#include "master/core/log/journal.h"
#include "master/core/api/master.h"
#include "master/core/protect/protection.h"

/* kvp_master_check walks everything and returns NULL, or what is broken. O(all). */
const char *kvp_master_check(const kvp_master_t *master);

/* Whether the master believes that version to be on that tier. */
bool kvp_tiered_check(const kvp_master_t *m, uint32_t segment_id, kvp_digest_t digest, uint64_t version);

/* Whether that extent is a place of the object's present version. */
bool kvp_place_check(const kvp_master_t *m, kvp_digest_t digest, uint64_t generation);

/* kvp_warm_check: an object that is about to be loaded was used more recently than the oldest on its tenant's list.
 * kvp_loaded_check: an object that was loaded just now does not stand among those that were used. */
bool kvp_warm_check(const kvp_master_t *m, kvp_digest_t digest);
bool kvp_loaded_check(const kvp_master_t *m, kvp_digest_t digest, uint64_t version);

/* Parts of it. kvp_groups_check: groups are reserved so often by tickets. */
const char *kvp_heap_check(const kvp_heap_t *heap);
const char *kvp_journal_check(const kvp_master_t *m);
const char *kvp_probe_check(const kvp_protect_t *prot);
const char *kvp_groups_check(const kvp_protect_t *prot, uint64_t reserved);

#endif
