/* SPDX-License-Identifier: Apache-2.0
 * What is gone, while nodes may report memory in which it still lies.
 */
#ifndef KVP_MASTER_CORE_PROTECT_GONE_H
#define KVP_MASTER_CORE_PROTECT_GONE_H

#include "common/hash.h"
#include "master/core/protect/protection.h"
#include "proto/jrec.h"

/* kvp_gone_is_rebuilding: memory of older terms may be reported, and is believed.
 * kvp_gone_version: no version of the key up to that one exists; 0 = nothing is known.
 * kvp_gone_hold: so it is from now on, where memory may be reported; else it does nothing. kvp_gone_say: the log says so, too.
 * kvp_gone_note: so it is, by the log of a master before. kvp_gone_prune: nobody may report versions below that one; now and then they are forgotten. kvp_gone_forget: nobody may report any more. */
bool kvp_gone_is_rebuilding(const kvp_protect_t *prot);
uint64_t kvp_gone_version(const kvp_protect_t *prot, uint32_t tenant, kvp_digest_t digest);
void kvp_gone_hold(kvp_protect_t *prot, kvp_digest_t digest, uint64_t version);
void kvp_gone_say(kvp_protect_t *prot, kvp_digest_t digest, uint64_t version, kvp_gone_t why);
void kvp_gone_note(kvp_protect_t *prot, kvp_digest_t digest, uint64_t version);
void kvp_gone_prune(kvp_protect_t *prot, uint64_t oldest);
void kvp_gone_forget(kvp_protect_t *prot);

#endif
