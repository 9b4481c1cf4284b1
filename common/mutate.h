/* SPDX-License-Identifier: Apache-2.0
 * Seams for the mutation check (tests/sim, tests/transport): KVP_RULE(name) stands at the one line where a rule of the
 * design lives, and is 1 in every build but those of the mutants, where a rule can be switched off to see that some
 * seed finds out. What ships is compiled without it.
 */
#ifndef KVP_COMMON_MUTATE_H
#define KVP_COMMON_MUTATE_H

#ifdef KVP_MUTATIONS
/* X(name, what the rule says) */
#define KVP_RULES(X)                                                                                                   \
    X(RETIRE_BEFORE_REUSE, "an extent is retired before it is granted again")                                          \
    X(FREE_BEFORE_REUSE, "dead is not free: reuse waits for the node's second word")                                   \
    X(RETIRE_DEAD, "a retired extent becomes unreadable before the answer")                                            \
    X(QUARANTINE, "free waits for the proof about the writer")                                                         \
    X(OWNER_OF_ABORTED, "an attempt that is not drained is retired with its owner")                                    \
    X(DRAINED_WORD, "the word of being drained comes after the last store")                                            \
    X(PROOF_OF_DEATH, "a proof that the writer is dead ends its quarantine")                                           \
    X(QUIESCE, "free waits for a round of all lanes")                                                                  \
    X(WORD_RULE, "a writer's word changes only over an older generation")                                              \
    X(GUARD, "payload lands only while the word is the writer's")                                                      \
    X(READ_STATE, "a reader accepts SEALED only")                                                                      \
    X(READ_GENERATION, "and only with the generation told")                                                            \
    X(READ_HASH2, "and only with the second hash of its key")                                                          \
    X(READ_CHECKSUM, "bytes whose sum differs are not accepted")                                                       \
    X(READ_BY_CHECKSUM, "where no descriptor was read the sum has to be that of the object")                           \
    X(CHECKSUM_LEASE, "of a known place that is enough for the time of a lease after it was told")                     \
    X(AFTER_PRIOR, "the descriptor is read after the payload")                                                         \
    X(PUBLISH_ORDER, "what was stored is visible before SEALED")                                                       \
    X(COMMIT_AFTER_SEAL, "commit comes after SEALED")                                                                  \
    X(KEY_COMPARE, "a put compares the whole key")                                                                     \
    X(TENANT_COMPARE, "and the tenant")                                                                                \
    X(FRESH_GENERATION, "a generation is never used twice")                                                            \
    X(TICKET_AGAINST_EVICTION, "what a ticket protects is not evicted")                                                \
    X(TICKET_AGAINST_REMOVAL, "remove without force leaves what a ticket protects")                                    \
    X(TICKET_RESTORE, "a new term honours tickets that sessions present again")                                        \
    X(TICKET_RESTORE_GRACE, "and keeps for a while what they may come for")                                            \
    X(SPACE_COMES, "no put is refused for good while space is on its way")                                             \
    X(RESERVATION_BOUND, "reservations take a bounded share of the pool, by all and by each")                          \
    X(RESET_OF_STRANGE_MEMORY, "memory that others may write is not taken as it is")                                   \
    X(FRESH_ONCE, "memory is fresh until it was offered")                                                              \
    X(TERM_CHECK, "no node obeys an older term, and no master goes on that hears of a newer one")                      \
    X(REVOKE_ON_REMOVAL, "a removal revokes known locations")                                                          \
    X(REVOKE_ON_UPSERT, "so does a newer version")                                                                     \
    X(REVOKE_NOT_DEAD_YET, "so does a put, or a removal, of what was evicted and is not dead yet")                     \
    X(REVOKE_EVICTED, "who waits revokes what was evicted as well: a sum alone may vouch for it")                      \
    X(REVOKE_OF_LOST, "so does the loss of a node")                                                                    \
    X(WAIT_FOR_LEASES, "a removal that waits does so for every lease")                                                 \
    X(LEASE_OF_THE_LOST, "a client cut off keeps its location lease for the grace")                                    \
    X(OLD_TERM_LEASES, "a new term waits for the leases of the one before")                                            \
    X(LEASE_LOOK_AGAIN, "the lease is looked at again after the last load")                                            \
    X(REVOKED_SEQUENCE, "an answer older than a revocation is not kept")                                               \
    X(GAP_WRITERS, "space between reported extents waits for the proof about all older writers")                       \
    X(NEWEST_WINS, "of what nodes report the newest version is served")                                                \
    X(TOMBSTONE, "what was removed meanwhile is not served when a node reports it")                                    \
    X(REMOVAL_OUTLIVES_MASTER, "what is promised to be gone, and is not dead, is known to somebody but the master")    \
    X(OLD_SLOTS_WAIT, "slots that an old writer may have in hand are granted to nobody until it is proved unable")     \
    X(REMOVAL_OUTLIVES_REPORTS, "and so is what goes while nodes may still report older versions of it")               \
    X(REPORT_AGAIN, "a report that was cut begins anew")                                                               \
    X(WITHHOLD_UNTIL_DURABLE, "what is promised is durable")                                                           \
    X(JOURNAL_KNOWS, "what the journal does not know is not adopted")                                                  \
    X(WRITE_OFF, "what some node has brought is not written off")                                                      \
    X(SUPERSEDED_STAYS, "what an upsert replaces stays until the new version is durable")                              \
    X(SNAPSHOT_WHOLE, "a snapshot says all that is there")                                                             \
    X(SNAPSHOT_REPORTED, "and is not begun before all nodes have reported")                                            \
    X(SNAPSHOT_DURABLE, "what is before a snapshot is forgotten when that is durable")                                 \
    X(DEADLINE_DRAIN, "after a call nothing touches its buffers")                                                      \
    X(RETIRE_GENERATION, "an order to retire does not touch a newer extent")                                           \
    X(RETIRE_AGAIN, "what a node was not heard to obey it is ordered again when it is back")                           \
    X(TERM_SWEEP, "a new term revokes what older ones had granted")                                                    \
    X(LATE_SWEEP, "also where a writer of an older term begins only now")                                              \
    X(FENCED_ATTACH, "a client that was fenced is let in no more")                                                     \
    X(ALREADY_IS_COMMITTED, "a put is told ALREADY only of what is committed")                                         \
    X(REPLICAS_APART, "copies lie on different hosts")                                                                 \
    X(BUMP_HIDES, "what was put before a bump is not found after it")                                                  \
    X(BUMP_UNDER_WAY, "nor is what was being put")                                                                     \
    X(BUMP_REVOKES, "a bump revokes all known locations")                                                              \
    X(RESERVATION_SHARE, "each client's a smaller one")                                                                \
    X(PROBE_AGAINST_REMOVAL, "a removal that heeds probes leaves what a live one names")                               \
    X(PROBE_YIELDS, "what was only probed goes where nothing else can")                                                \
    X(RECENT_PROBES, "what was not probed for long is a quarter of the pool at most")                                  \
    X(PROBE_SHARE, "and all that is probed three quarters")                                                            \
    X(RESERVATION_TIME, "a reservation ends with its time")                                                            \
    X(SILENT_WRITER, "the key of a writer that is silent is given to who asks for it")                                 \
    X(UNFINISHED_BYTES, "what a client has unfinished is bounded")                                                     \
    X(REMOVAL_ANSWERED, "a removal is answered in time, even while a node is silent")                                  \
    X(AGAIN_WAITS, "a commit that is repeated is answered after the first answer")                                     \
    X(HARD_PIN, "what is pinned hard is not evicted")                                                                  \
    X(PIN_BUDGET, "soft pins have a budget")                                                                           \
    X(GROUP_HIDDEN, "a group with a size is invisible until it is whole")                                              \
    X(GROUP_AS_ONE, "a group is evicted as one")                                                                       \
    X(GROUP_WITHOUT_OWNER, "an incomplete group goes with the last who was putting it")                                \
    X(GROUP_TICKET, "a ticket on one member keeps its group")                                                          \
    X(GROUP_SEEN, "a group is found when all its members are there")                                                   \
    X(GROUP_OF_EPOCH, "what was put before a bump is no part of a group put after it")                                 \
    X(LOOKUP_IS_NO_USE, "a look-up alone is no use of what it finds")

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
    X(RDMA_EPOCH, "keys of a peer's earlier life are not sent to the one that it lives now")                           \
    X(RDMA_DRAIN, "a drain that is out of time destroys the queue pair before it returns")

/* Rules of device memory, which a GPU and an adapter that are not there hold against the library. */
#define KVP_DEVICE_RULES(X)                                                                                            \
    X(DEVICE_FLUSH, "what adapters wrote into a device's memory is flushed before a get says OK")

typedef enum {
    KVP_RULE_NONE,
#define KVP_RULE_ENUM(name, text) KVP_RULE_##name,
    KVP_RULES(KVP_RULE_ENUM) KVP_RDMA_RULES(KVP_RULE_ENUM) KVP_DEVICE_RULES(KVP_RULE_ENUM)
#undef KVP_RULE_ENUM
} kvp_rule_t;

extern kvp_rule_t kvp_rule_off; /* the simulator's */
#define KVP_RULE(name) (kvp_rule_off != KVP_RULE_##name)
#else
#define KVP_RULE(name) 1
#endif

#endif
