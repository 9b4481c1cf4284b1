/* SPDX-License-Identifier: Apache-2.0
 * The master's disk: a file that is appended to, with latencies of its own for writes and for syncs. What was written
 * is read back after the master was killed, and what was synced after its machine has lost its power; of what is
 * behind that, any beginning may be there too, and after a power loss its last bytes may be wrong. Some plans lose
 * all of it, in some it does not answer for long. What the log says is read here a second time, for the oracle. */
#ifndef KVP_TESTS_SIM_DISK_H
#define KVP_TESTS_SIM_DISK_H

#include "common/hash.h"
#include "tests/sim/sim.h"

void disk_start(sim_t *s);
void disk_stop(sim_t *s);
void disk_write(sim_t *s, const uint8_t *bytes,
                size_t len); /* master_written and master_synced follow, sooner or later */
void disk_sync(sim_t *s, bool is_wanted); /* the master waits for it; else it may come, or not */
void disk_crash(sim_t *s); /* the master's */
void disk_heal(sim_t *s); /* it answers again */
/* disk_forget drops what lies before that position. */
void disk_forget(sim_t *s, uint64_t from);
/* What a standby follows. disk_at: the bytes from that position on, up to disk_written. disk_next_base: where a base
 * begins behind the first position and in front of the second, or the second. disk_synced: position up to which the
 * master may take all to be kept for good, which waits for the standby; disk_more_is_synced: that one has got on.
 * disk_taken_over: the log ends there, and another core goes on with it, whose positions begin at the first one, and
 * which lacks nothing (is_level) or believes nodes of what came behind. */
const uint8_t *disk_at(const sim_t *s, uint64_t at);
uint64_t disk_from(const sim_t *s);
uint64_t disk_written(const sim_t *s);
uint64_t disk_synced(const sim_t *s);
uint64_t disk_next_base(const sim_t *s, uint64_t at, uint64_t to);
void disk_more_is_synced(sim_t *s);
void disk_taken_over(sim_t *s, uint64_t origin, uint64_t end, bool is_level);

/* disk_restore has a new core read it, and cuts it where that says. */
void disk_restore(sim_t *s, kvp_master_t *core);

/* What the journal said when the master that runs now began. disk_judges: all that was committed then. disk_knows: that
 * version was. disk_says_gone: it was gone, whatever nodes report. disk_has_said: at some time a commit of it was
 * written. */
bool disk_judges(const sim_t *s);
bool disk_knows(const sim_t *s, uint32_t tenant, kvp_digest_t digest, uint64_t version);
bool disk_has_bumped(const sim_t *s, uint32_t tenant, uint64_t version); /* it is of an older epoch, by the same */
bool disk_says_gone(const sim_t *s, kvp_digest_t digest, uint64_t version);
bool disk_has_synced_gone(const sim_t *s, uint32_t tenant, kvp_digest_t digest,
                          uint64_t version); /* by what is synced now */
bool disk_has_synced_newer(const sim_t *s, kvp_digest_t digest,
                           uint64_t version); /* that version is superseded, by the same */
uint64_t disk_synced_oldest(const sim_t *s); /* below that generation nodes are not believed, by the same */
bool disk_is_relied_on(const sim_t *s); /* as it is durable, it says all that is committed */
bool disk_has_said(const sim_t *s, kvp_digest_t digest, uint64_t version);

#endif
