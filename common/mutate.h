/* SPDX-License-Identifier: Apache-2.0
 * Hooks for mutation tests (tests/sim, tests/transport). KVP_RULE(name) is at the one line that implements a rule
 * of the design. It is the constant 1 in every normal build. In a mutant build a test switches one rule off and
 * expects that some test seed fails. Shipped programs contain no trace of it. */
#ifndef KVP_COMMON_MUTATE_H
#define KVP_COMMON_MUTATE_H

#ifdef KVP_MUTATIONS
/* Rules of the design that a mutant build can switch off, except those in the lists below: rows X(name, rule). */
#define KVP_RULES(X)                                                                                                   \
    X(RETIRE_BEFORE_REUSE, "an extent is retired before it is granted for another object")                             \
    X(FREE_BEFORE_REUSE, "a dead extent is reused only after the node reported it free")                               \
    X(RETIRE_DEAD, "a retired extent becomes unreadable before the answer")                                            \
    X(QUARANTINE, "an extent is not free before its writer is proved unable to store")                                 \
    X(OWNER_OF_ABORTED, "an attempt that is not drained is retired with its owner")                                    \
    X(DRAINED_WORD, "a drain notice is sent after the last store")                                                     \
    X(PROOF_OF_DEATH, "a proof that the writer is dead ends its quarantine")                                           \
    X(QUIESCE, "an extent is not free before every lane has gone round once")                                          \
    X(WORD_RULE, "a writer's word changes only over an older generation")                                              \
    X(GUARD, "payload lands only while the word is the writer's")                                                      \
    X(READ_STATE, "a reader accepts SEALED only")                                                                      \
    X(READ_GENERATION, "a reader accepts only the generation that the master named")                                   \
    X(READ_HASH2, "a reader accepts only the second hash of its key")                                                  \
    X(READ_CHECKSUM, "a reader accepts no bytes with another checksum")                                                \
    X(READ_BY_CHECKSUM, "a read without a descriptor compares the object's checksum")                                  \
    X(CHECKSUM_LEASE, "a read of a known location by checksum alone ends with its lease")                              \
    X(AFTER_PRIOR, "the descriptor is read after the payload")                                                         \
    X(PUBLISH_ORDER, "payload is visible before SEALED")                                                               \
    X(COMMIT_AFTER_SEAL, "commit comes after SEALED")                                                                  \
    X(KEY_COMPARE, "a put compares the whole key")                                                                     \
    X(TENANT_COMPARE, "a put compares the tenant")                                                                     \
    X(FRESH_GENERATION, "a generation is never used twice")                                                            \
    X(TICKET_AGAINST_EVICTION, "an eviction spares objects under a ticket")                                            \
    X(TICKET_AGAINST_REMOVAL, "a removal without force spares objects under a ticket")                                 \
    X(TICKET_RESTORE, "a new term honours tickets that sessions present after a restart")                              \
    X(TICKET_RESTORE_GRACE, "a new term keeps objects for a while, until sessions have presented their tickets")       \
    X(SPACE_COMES, "a put is not refused for good while space is being freed")                                         \
    X(RESERVATION_BOUND, "all reservations together take a bounded share of the pool")                                 \
    X(RESET_OF_STRANGE_MEMORY, "a node resets memory that unknown writers may have written")                           \
    X(FRESH_ONCE, "memory counts as fresh until a node offers it")                                                     \
    X(TERM_CHECK, "a node obeys no older term, and a master that hears of a newer term stops")                         \
    X(TERM_OF_STRANGERS, "a peer cannot raise the term of an elected master, nor of a master long after its start")    \
    X(REVOKE_ON_REMOVAL, "a removal revokes known locations")                                                          \
    X(REVOKE_ON_UPSERT, "a newer version revokes known locations")                                                     \
    X(REVOKE_NOT_DEAD_YET, "a put or removal revokes locations of evicted extents that are not DEAD yet")              \
    X(REVOKE_EVICTED, "a removal that waits for readers revokes locations of evicted extents, too")                    \
    X(REVOKE_OF_LOST, "the loss of a node revokes known locations")                                                    \
    X(WAIT_FOR_LEASES, "a removal that waits for readers waits for every location lease")                              \
    X(LEASE_OF_THE_LOST, "a disconnected client keeps its location lease for the grace")                               \
    X(OLD_TERM_LEASES, "a new term waits for the location leases of the previous term")                                \
    X(LEASE_LOOK_AGAIN, "a reader checks its lease after the last load")                                               \
    X(REVOKED_SEQUENCE, "a client does not cache an answer older than a revocation")                                   \
    X(GAP_WRITERS, "space between reported extents waits until all older writers are proved unable to store")          \
    X(NEWEST_WINS, "of the versions that nodes report, the newest is served")                                          \
    X(GONE_IS_NOT_ADOPTED, "a removed object is not served when a node reports it")                                    \
    X(OLD_SLOTS_WAIT, "slots that an old writer may hold are not granted before it is proved unable to store")         \
    X(REPORT_AGAIN, "a report that was interrupted starts from the beginning")                                         \
    X(WITHHOLD_UNTIL_DURABLE, "an answer waits until its change is durable")                                           \
    X(TORN_END, "only the removals are accepted from a log that ends in the middle of a record")                       \
    X(LOG_KNOWS, "an extent that the log does not have is made DEAD")                                                  \
    X(LOG_SAYS_GONE, "an object that a log records as removed is not adopted, even if the log lacks its end")          \
    X(GONE_WHILE_REPORTING, "the log records removals while nodes report")                                             \
    X(REMOVAL_SYNCED, "a removal is answered after its record is synced")                                              \
    X(SNAPSHOT_GONE, "a snapshot records removed objects that are not DEAD")                                           \
    X(SUPERSEDED_STAYS, "a replaced version stays until the new version is durable")                                   \
    X(SNAPSHOT_WHOLE, "a snapshot lists all objects")                                                                  \
    X(SNAPSHOT_DURABLE, "older records are dropped only when the snapshot is durable")                                 \
    X(DEADLINE_DRAIN, "after a call nothing touches its buffers")                                                      \
    X(RETIRE_GENERATION, "an order to retire does not touch a newer extent")                                           \
    X(RETIRE_AGAIN, "a node that reconnects gets its unanswered orders to retire again")                               \
    X(TERM_SWEEP, "a new term revokes grants of older terms")                                                          \
    X(SWEEP_FIRST, "a new term is obeyed after all grants of older terms are revoked")                                 \
    X(LATE_SWEEP, "a new term also revokes grants of a writer of an older term that starts later")                     \
    X(FENCED_ATTACH, "a fenced client cannot attach again")                                                            \
    X(ALREADY_IS_COMMITTED, "a put is answered ALREADY only for a committed object")                                   \
    X(REPLICAS_APART, "replicas lie in different segments")                                                            \
    X(BUMP_HIDES, "an object put before a bump is not found after it")                                                 \
    X(BUMP_UNDER_WAY, "a put under way during a bump is not found after it")                                           \
    X(BUMP_REVOKES, "a bump revokes all known locations")                                                              \
    X(EPOCH_LOOKUP, "a look-up for another epoch finds nothing")                                                       \
    X(EPOCH_GET, "a get for another epoch returns nothing")                                                            \
    X(EPOCH_PUT, "a put for another epoch begins nothing")                                                             \
    X(RESERVATION_SHARE, "the reservations of one client take a smaller share")                                        \
    X(PROBE_AGAINST_REMOVAL, "a removal that heeds probes spares objects under a live probe")                          \
    X(PROBE_YIELDS, "probed objects are evicted if no others can be")                                                  \
    X(PROBE_SHARE, "all probed objects take a quarter of the pool at most")                                            \
    X(RESERVATION_TIME, "a reservation ends at its time limit")                                                        \
    X(SILENT_WRITER, "a silent writer's key is given to another client that asks for it")                              \
    X(UNFINISHED_BYTES, "the unfinished bytes of a client are bounded")                                                \
    X(REMOVAL_ANSWERED, "a removal is answered in time, even while a node is silent")                                  \
    X(AGAIN_WAITS, "a repeated commit is answered after the first one")                                                \
    X(HARD_PIN, "a hard-pinned object is not evicted")                                                                 \
    X(PIN_BUDGET, "soft pins have a budget")                                                                           \
    X(GROUP_HIDDEN, "a group with a size is invisible until it is whole")                                              \
    X(GROUP_AS_ONE, "a group is evicted as one")                                                                       \
    X(GROUP_WITHOUT_OWNER, "an incomplete group is removed with its last owner")                                       \
    X(GROUP_TICKET, "a ticket on one member keeps its group")                                                          \
    X(GROUP_SEEN, "a complete group is found")                                                                         \
    X(GROUP_OF_EPOCH, "an object put before a bump joins no group put after it")                                       \
    X(LOOKUP_IS_NO_USE, "a look-up alone does not count as a use")                                                     \
    X(CHECK_FIRST, "an object that a reader reports as unreadable is dropped only if its node confirms this")          \
    X(CHECK_SOUND, "a node confirms as unreadable only objects that no reader accepts")                                \
    X(MOVE_VERSION, "a move between memory and a tier counts only for its own version")                                \
    X(DEMOTE_ANSWERED, "an object is on a tier only after its node has written it")                                    \
    X(STAGE_ANSWERED, "a loaded object is in memory only after its node has sealed it")                                \
    X(STAGE_RETIRED, "the extent of a failed load is retired like any other")                                          \
    X(TIER_DROPS, "a removed object is dropped from its tier")                                                         \
    X(TIER_DROPS_AGAIN, "a node that reconnects drops removed objects from its tier")                                  \
    X(TIER_REPORT, "a tier's report is compared with the log")                                                         \
    X(TIER_REPORT_VERSION, "of a tier's report only the served versions are accepted")                                 \
    X(LOAD_ROOM, "a load from a tier finds room in its node's memory")                                                 \
    X(LOADED_IS_COLD, "a loaded object is evicted before objects that were used since")                                \
    X(RECLAIM_ENDS, "a record that is not kept when its page is reclaimed belongs to no object")                       \
    X(KEPT_TERM, "a process that adopts a node's memory obeys no older term than the previous process")                \
    X(KEPT_WRITERS, "a process that adopts a node's memory waits until earlier writers are proved unable to store")    \
    X(INSYNC_WAITED, "a removal is acknowledged when every member of the in-sync set has it")                          \
    X(OLDEST_OPEN, "OLDEST does not pass the beginning of an unfinished attempt")                                      \
    X(OLDEST_KNOWN, "after a take-over no object is adopted that the log would have")                                  \
    X(LACK_ADOPTED, "after a take-over objects that the log lacks are adopted")                                        \
    X(LACK_RETIRES, "orders to retire wait until the node has reported its objects")                                   \
    X(COPY_VERSION, "a copy counts only for its own version")                                                          \
    X(COPY_ANSWERED, "a copy is served only after its node has sealed it")                                             \
    X(COPY_REMOVED, "a removal waits until the copy being made is unreadable, too")                                    \
    X(COPY_GONE, "a removed version is in the log until no node can have a copy that an earlier master ordered")       \
    X(LEAVING_SYNCED, "the source is dropped only after the record that names the target is synced")                   \
    X(LEAVING_TICKETS, "the source is dropped only after the tickets that were taken before have ended")               \
    X(LEAVING_NAMED, "and after those taken while answers named the source, because no other copy was served")         \
    X(LEAVING_LAST, "the source is dropped only while another copy is served")                                         \
    X(DRAIN_LOGGED, "a draining node is draining for the next master, too")                                            \
    X(DRAIN_NO_PUTS, "nothing new is placed on a draining node")

/* Rules of the RDMA transport. The tests run the transport against a model of the network adapter. */
#define KVP_RDMA_RULES(X)                                                                                              \
    X(RDMA_READ_FENCE, "a READ of a descriptor begins after the READs of its payload have ended")                      \
    X(RDMA_PUSH, "a batch of writes ends when a READ behind it has ended")                                             \
    X(RDMA_SEAL_PUSH, "SEALED is posted behind a READ that flushes the payload")                                       \
    X(RDMA_SEAL_FENCE, "SEALED begins after the flushing READ has ended")                                              \
    X(RDMA_WRITE_WAITS, "data that a READ brings is not sent on before the READ has ended")                            \
    X(RDMA_READ_RAILS, "a READ of a descriptor begins after the READs of its payload on all rails")                    \
    X(RDMA_PUSH_RAILS, "every rail that carried writes is flushed")                                                    \
    X(RDMA_SEAL_RAILS, "SEALED waits for the payload on all rails")                                                    \
    X(RDMA_WRITES_ONCE, "a failed rail's writes are not repeated over another rail")                                   \
    X(RDMA_OLD_WRITES, "a write uses no connection that is younger than the grant of its place")                       \
    X(RDMA_READS_AGAIN, "a failed rail's READs are repeated over another rail")                                        \
    X(RDMA_LOST_ORDER, "repeated READs keep their first order, however often rails fail")                              \
    X(RDMA_SILENCE, "a queue pair that is silent for longer than adapters retry is given up")                          \
    X(RDMA_DEVICE_GONE, "a queue pair on a removed device is given up at once")                                        \
    X(RDMA_CUT, "a writer whose connection is cut stores nothing more")                                                \
    X(RDMA_PEER_FENCE, "a fenced writer stores nothing more")                                                          \
    X(RDMA_REFUSE_FENCED, "a fenced peer cannot connect")                                                              \
    X(RDMA_ATTACHED, "a peer without an attachment cannot connect")                                                    \
    X(RDMA_EPOCH, "keys of a peer's previous process are not sent to its present process")                             \
    X(RDMA_DRAIN, "a drain that runs out of time destroys the queue pair before it returns")

/* Rules of elections. tests/sim/elect.c checks them against a model of etcd. */
#define KVP_ELECTION_RULES(X)                                                                                          \
    X(LEASE_FROM_SENT, "a lease counts from before its renewal was sent")                                              \
    X(LEASE_KEPT_PART, "a leader acts for a part of its lease only")                                                   \
    X(CAMPAIGN_IF_ABSENT, "the leader key is put only if it is absent")                                                \
    X(TERM_ABOVE_ALL, "a new term is above all known terms")                                                           \
    X(TERM_OF_ETCD, "a leader gives up if etcd has a higher term")                                                     \
    X(SET_IF_LEADER, "only the owner of the leader key writes the in-sync set")                                        \
    X(SET_BEFORE_LEAD, "a new leader writes an in-sync set of itself alone before it leads")                           \
    X(SET_MAY_STAND, "a set whose write was not answered counts as written")                                           \
    X(LEVEL_OF_LAST, "a log is level only if no other master has led since its leader's last message")                 \
    X(MEMBERS_FIRST, "a master outside the in-sync set lets the members become candidates first")

/* Rules of device memory. The tests check the library with a simulated GPU and a simulated adapter. */
#define KVP_DEVICE_RULES(X)                                                                                            \
    X(DEVICE_FLUSH, "adapters' writes into a device's memory are flushed before a get answers OK")

typedef enum {
    KVP_RULE_NONE,
#define KVP_RULE_ENUM(name, text) KVP_RULE_##name,
    KVP_RULES(KVP_RULE_ENUM) KVP_RDMA_RULES(KVP_RULE_ENUM) KVP_ELECTION_RULES(KVP_RULE_ENUM)
        KVP_DEVICE_RULES(KVP_RULE_ENUM)
#undef KVP_RULE_ENUM
} kvp_rule_t;

extern kvp_rule_t kvp_rule_off; /* the rule that is switched off in a mutant build; set by the test program */
#define KVP_RULE(name) (kvp_rule_off != KVP_RULE_##name)
#else
#define KVP_RULE(name) 1
#endif

#endif
