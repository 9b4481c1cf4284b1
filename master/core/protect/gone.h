/* SPDX-License-Identifier: Apache-2.0
 * The memory of removed versions, while nodes may report memory that still has these objects. After a drain in an
 * earlier master's log a node may have a copy that no log names, until it has reported. */
#ifndef KVP_MASTER_CORE_PROTECT_GONE_H
#define KVP_MASTER_CORE_PROTECT_GONE_H

#include "common/hash.h"
#include "master/core/protect/protection.h"
#include "proto/jrec.h"

/* kvp_gone_is_rebuilding returns true while nodes may report memory of older terms that is trusted. kvp_gone_version
 * returns the highest removed version of the key: no version up to it exists; 0 = unknown. kvp_gone_hold notes a
 * removal while memory may be reported; else it has no effect. kvp_gone_say does the same and also records the
 * removal in the log. kvp_gone_note records a removal from an earlier master's log. kvp_gone_prune: no node may
 * report versions below the given one, so their removals are forgotten when there are many. kvp_gone_forget: no node
 * may report any more, so all removals are forgotten. */
bool kvp_gone_is_rebuilding(const kvp_protect_t *prot);
uint64_t kvp_gone_version(const kvp_protect_t *prot, uint32_t tenant, kvp_digest_t digest);
void kvp_gone_hold(kvp_protect_t *prot, kvp_digest_t digest, uint64_t version);
void kvp_gone_say(kvp_protect_t *prot, kvp_digest_t digest, uint64_t version, kvp_gone_t why);
void kvp_gone_note(kvp_protect_t *prot, kvp_digest_t digest, uint64_t version);
void kvp_gone_prune(kvp_protect_t *prot, uint64_t oldest);
void kvp_gone_forget(kvp_protect_t *prot);

#endif
