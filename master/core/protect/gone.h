/* SPDX-License-Identifier: Apache-2.0
 * Removed versions, while nodes may report memory that still has them. */
#ifndef KVP_MASTER_CORE_PROTECT_GONE_H
#define KVP_MASTER_CORE_PROTECT_GONE_H

#include "common/hash.h"
#include "master/core/protect/protection.h"
#include "proto/jrec.h"

/* kvp_gone_is_rebuilding: memory of older terms may be reported, and is trusted. kvp_gone_version:
 * no version of the key up to this one exists; 0 = unknown. kvp_gone_hold records a removal, while
 * memory may be reported; else it has no effect. kvp_gone_say: the same, and the log records it,
 * too. kvp_gone_note: a removal from an earlier master's log. kvp_gone_prune: no node may report
 * versions below the given one; now and then they are forgotten. kvp_gone_forget: no node may
 * report any more. */
bool kvp_gone_is_rebuilding(const kvp_protect_t *prot);
uint64_t kvp_gone_version(const kvp_protect_t *prot, uint32_t tenant, kvp_digest_t digest);
void kvp_gone_hold(kvp_protect_t *prot, kvp_digest_t digest, uint64_t version);
void kvp_gone_say(kvp_protect_t *prot, kvp_digest_t digest, uint64_t version, kvp_gone_t why);
void kvp_gone_note(kvp_protect_t *prot, kvp_digest_t digest, uint64_t version);
void kvp_gone_prune(kvp_protect_t *prot, uint64_t oldest);
void kvp_gone_forget(kvp_protect_t *prot);

#endif
