/* SPDX-License-Identifier: Apache-2.0
 * Seams for the mutation check (tests/sim, tests/transport). KVP_RULE(name) stands at the one line
 * that implements a rule of the design. It is the constant 1 in every build but the mutants, where
 * a test switches one rule off and expects some seed to fail. Shipped programs contain no trace of
 * it. */
#ifndef KVP_COMMON_MUTATE_H
#define KVP_COMMON_MUTATE_H

#ifdef KVP_MUTATIONS
/* X(name, the text of the rule) */
#define KVP_RULES(X)                                                                                                   \
    X(RETIRE_BEFORE_REUSE, "an extent is retired before it is granted again")                                          \
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
    X(TICKET_AGAINST_EVICTION, "an eviction spares what a ticket protects")                                            \
    X(TICKET_AGAINST_REMOVAL, "a removal without force spares what a ticket protects")                                 \
    X(TICKET_RESTORE, "a new term honours tickets that sessions present again")                                        \
    X(TICKET_RESTORE_GRACE, "a new term keeps for a while what sessions may present tickets for")                      \
    X(SPACE_COMES, "no put is refused for good while space is being freed")                                            \
    X(RESERVATION_BOUND, "all reservations together take a bounded share of the pool")                                 \
    X(RESET_OF_STRANGE_MEMORY, "a node resets memory that others may have written")                                    \
    X(FRESH_ONCE, "memory counts as fresh until a node offers it")                                                     \
    X(TERM_CHECK, "no node obeys an older term, and no master goes on that hears of a newer one")                      \
    X(TERM_OF_STRANGERS, "no peer raises the term of an elected master, nor of any long after its start")              \
    X(REVOKE_ON_REMOVAL, "a removal revokes known locations")                                                          \
    X(REVOKE_ON_UPSERT, "a newer version revokes known locations")                                                     \
    X(REVOKE_NOT_DEAD_YET, "a put or removal revokes locations of evicted extents that are not dead yet")              \
    X(REVOKE_EVICTED, "a removal that waits revokes locations of evicted extents too")                                 \
    X(REVOKE_OF_LOST, "the loss of a node revokes known locations")                                                    \
    X(WAIT_FOR_LEASES, "a removal that waits does so for every lease")                                                 \
    X(LEASE_OF_THE_LOST, "a client cut off keeps its location lease for the grace")                                    \
    X(OLD_TERM_LEASES, "a new term waits for the leases of the one before")                                            \
    X(LEASE_LOOK_AGAIN, "a reader checks the lease again after the last load")                                         \
    X(REVOKED_SEQUENCE, "a client does not cache an answer older than a revocation")                                   \
    X(GAP_WRITERS, "space between reported extents waits for the proof about all older writers")                       \
    X(NEWEST_WINS, "of the versions that nodes report, the newest is served")                                          \
    X(GONE_IS_NOT_ADOPTED, "a removed object is not served when a node reports it")                                    \
    X(OLD_SLOTS_WAIT, "slots that an old writer may have in hand are granted to nobody until it is proved unable")     \
    X(REPORT_AGAIN, "a report that was cut begins anew")                                                               \
    X(WITHHOLD_UNTIL_DURABLE, "an answer waits until its change is durable")                                           \
    X(TORN_END, "a log that ends in the middle of a record is believed only in what it says is gone")                  \
    X(LOG_KNOWS, "an extent that the log does not know is made DEAD")                                                  \
    X(LOG_SAYS_GONE, "what a log that lacks its end says is gone is not adopted")                                      \
    X(GONE_WHILE_REPORTING, "the log says what goes while nodes report")                                               \
    X(REMOVAL_SYNCED, "a removal is answered when the log that says so is synced")                                     \
    X(SNAPSHOT_GONE, "a snapshot says what is gone and not dead")                                                      \
    X(SUPERSEDED_STAYS, "a replaced version stays until the new version is durable")                                   \
    X(SNAPSHOT_WHOLE, "a snapshot lists all objects")                                                                  \
    X(SNAPSHOT_DURABLE, "older records are dropped only when the snapshot is durable")                                 \
    X(DEADLINE_DRAIN, "after a call nothing touches its buffers")                                                      \
    X(RETIRE_GENERATION, "an order to retire does not touch a newer extent")                                           \
    X(RETIRE_AGAIN, "a node that comes back is ordered again to retire what it had not answered")                      \
    X(TERM_SWEEP, "a new term revokes grants of older terms")                                                          \
    X(SWEEP_FIRST, "and is obeyed when all of them are revoked")                                                       \
    X(LATE_SWEEP, "it does so too for a writer of an older term that begins only now")                                 \
    X(FENCED_ATTACH, "a fenced client cannot attach again")                                                            \
    X(ALREADY_IS_COMMITTED, "a put is answered ALREADY only for a committed object")                                   \
    X(REPLICAS_APART, "replicas lie in different segments")                                                            \
    X(BUMP_HIDES, "an object put before a bump is not found after it")                                                 \
    X(BUMP_UNDER_WAY, "a put under way during a bump is not found after it")                                           \
    X(BUMP_REVOKES, "a bump revokes all known locations")                                                              \
    X(RESERVATION_SHARE, "the reservations of one client take a smaller share")                                        \
    X(PROBE_AGAINST_REMOVAL, "a removal that heeds probes spares what a live probe names")                             \
    X(PROBE_YIELDS, "probed objects are evicted where nothing else can be")                                            \
    X(PROBE_SHARE, "all probed objects take a quarter of the pool at most")                                            \
    X(RESERVATION_TIME, "a reservation ends with its time")                                                            \
    X(SILENT_WRITER, "the key of a silent writer is given to another client that asks for it")                         \
    X(UNFINISHED_BYTES, "the unfinished bytes of a client are bounded")                                                \
    X(REMOVAL_ANSWERED, "a removal is answered in time, even while a node is silent")                                  \
    X(AGAIN_WAITS, "a repeated commit is answered after the first one")                                                \
    X(HARD_PIN, "a hard-pinned object is not evicted")                                                                 \
    X(PIN_BUDGET, "soft pins have a budget")                                                                           \
    X(GROUP_HIDDEN, "a group with a size is invisible until it is whole")                                              \
    X(GROUP_AS_ONE, "a group is evicted as one")                                                                       \
    X(GROUP_WITHOUT_OWNER, "an incomplete group is removed with its last owner")                                       \
    X(GROUP_TICKET, "a ticket on one member keeps its group")                                                          \
    X(GROUP_SEEN, "a group is found when all its members are there")                                                   \
    X(GROUP_OF_EPOCH, "an object put before a bump joins no group put after it")                                       \
    X(LOOKUP_IS_NO_USE, "a look-up alone does not count as a use")                                                     \
    X(CHECK_FIRST, "what a reader calls unreadable is dropped only by its node's word")                                \
    X(CHECK_SOUND, "a node calls unreadable only what no reader accepts")                                              \
    X(MOVE_VERSION, "what moves between memory and a tier counts only for the version that it is of")                  \
    X(DEMOTE_ANSWERED, "what its node has not written is not on a tier")                                               \
    X(STAGE_ANSWERED, "what its node has not sealed is not in memory")                                                 \
    X(STAGE_RETIRED, "the extent of a stage that failed is retired like any other")                                    \
    X(TIER_DROPS, "what is gone is dropped from its tier")                                                             \
    X(TIER_DROPS_AGAIN, "and again by a node that comes back")                                                         \
    X(TIER_REPORT, "what a tier has is held against the log")                                                          \
    X(TIER_REPORT_VERSION, "of what a tier tells only the version that is served is believed")                         \
    X(LOAD_ROOM, "what is loaded from a tier finds room in the memory of its node")                                    \
    X(LOADED_IS_COLD, "what is loaded from a tier is evicted before what was used since")                              \
    X(RECLAIM_ENDS, "what is not kept of a page is no object's")                                                       \
    X(KEPT_TERM, "the process that adopts a node's memory obeys no older term than the one before")                    \
    X(KEPT_WRITERS, "it waits for the proof about those who may still store")                                          \
    X(INSYNC_WAITED, "what is gone is acknowledged when every member of the in-sync set knows it")                     \
    X(OLDEST_OPEN, "what is said to be known does not reach beyond an unfinished attempt")                             \
    X(OLDEST_KNOWN, "after a take-over nothing is adopted that the log would know")                                    \
    X(LACK_ADOPTED, "after a take-over what the log lacks is adopted")                                                 \
    X(LACK_RETIRES, "orders to retire wait until the node has told what lies there")

/* Rules of rdma, which the model NIC holds against the transport itself. */
#define KVP_RDMA_RULES(X)                                                                                              \
    X(RDMA_READ_FENCE, "a descriptor's READ begins after the payload's have ended")                                    \
    X(RDMA_PUSH, "a batch that wrote is over when a READ behind it is")                                                \
    X(RDMA_SEAL_PUSH, "SEALED is posted behind a READ that pushes what was written")                                   \
    X(RDMA_SEAL_FENCE, "and begins after it has ended")                                                                \
    X(RDMA_WRITE_WAITS, "what a READ is to bring is not sent on before it is there")                                   \
    X(RDMA_READ_RAILS, "a descriptor's READ begins after the payload's on all rails")                                  \
    X(RDMA_PUSH_RAILS, "every rail that carried writes is pushed")                                                     \
    X(RDMA_SEAL_RAILS, "SEALED waits for what was written on all rails")                                               \
    X(RDMA_WRITES_ONCE, "what a failed rail wrote is not written again over another one")                              \
    X(RDMA_OLD_WRITES, "what is written to a place goes over no connection that is younger than its grant")            \
    X(RDMA_READS_AGAIN, "what it was reading is")                                                                      \
    X(RDMA_LOST_ORDER, "in the order in which it was first asked for, however often rails fail")                       \
    X(RDMA_SILENCE, "a queue pair that shows nothing for longer than adapters try is given up")                        \
    X(RDMA_DEVICE_GONE, "so is one on a device that was removed, at once")                                             \
    X(RDMA_CUT, "a writer that is cut lands nothing more")                                                             \
    X(RDMA_PEER_FENCE, "nor does one that is fenced")                                                                  \
    X(RDMA_REFUSE_FENCED, "who connects no more")                                                                      \
    X(RDMA_ATTACHED, "who has no attachment does not connect either")                                                  \
    X(RDMA_EPOCH, "keys of a peer's earlier life are not sent to the one that it lives now")                           \
    X(RDMA_DRAIN, "a drain that is out of time destroys the queue pair before it returns")

/* Rules of elections, which tests/sim/elect.c holds against a model of etcd. */
#define KVP_ELECTION_RULES(X)                                                                                          \
    X(LEASE_FROM_SENT, "a lease counts from before its renewal was sent")                                              \
    X(LEASE_KEPT_PART, "a leader acts for a part of its lease only")                                                   \
    X(CAMPAIGN_IF_ABSENT, "the leader key is put only where there is none")                                            \
    X(TERM_ABOVE_ALL, "a term is above all that are known")                                                            \
    X(TERM_OF_ETCD, "a leader gives up where etcd knows a higher term")                                                \
    X(SET_IF_LEADER, "the in-sync set is written only by whose the leader key is")                                     \
    X(SET_BEFORE_LEAD, "the set of a new leader is itself, before it leads")                                           \
    X(SET_MAY_STAND, "a set that may have been written counts as written")                                             \
    X(LEVEL_OF_LAST, "a log is level only if no other master has led since its leader said its last")                  \
    X(MEMBERS_FIRST, "who is not in the in-sync set lets its members go first")

/* Rules of device memory, which a GPU and an adapter that are not there hold against the library. */
#define KVP_DEVICE_RULES(X)                                                                                            \
    X(DEVICE_FLUSH, "what adapters wrote into a device's memory is flushed before a get says OK")

typedef enum {
    KVP_RULE_NONE,
#define KVP_RULE_ENUM(name, text) KVP_RULE_##name,
    KVP_RULES(KVP_RULE_ENUM) KVP_RDMA_RULES(KVP_RULE_ENUM) KVP_ELECTION_RULES(KVP_RULE_ENUM)
        KVP_DEVICE_RULES(KVP_RULE_ENUM)
#undef KVP_RULE_ENUM
} kvp_rule_t;

extern kvp_rule_t kvp_rule_off; /* the simulator's */
#define KVP_RULE(name) (kvp_rule_off != KVP_RULE_##name)
#else
#define KVP_RULE(name) 1
#endif

#endif
