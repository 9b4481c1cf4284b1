/* SPDX-License-Identifier: Apache-2.0
 * What must hold, and the reference that it is held against: everything that clients were told, everything that the
 * master says, and every extent with what became of it. Rules are named by the design's invariants: I1 to I9. */
#ifndef KVP_TESTS_SIM_ORACLE_H
#define KVP_TESTS_SIM_ORACLE_H

#include "proto/frame.h"
#include "proto/wire.h"
#include "tests/sim/sim_mem.h"

/* One put of a key by one call; all its attempts write the same marks. */
typedef struct put {
    uint64_t id;
    uint32_t key;
    uint64_t len;
    uint64_t begun_ns;
    uint64_t acked_ns; /* UINT64_MAX = not, or another's */
    uint64_t gone_ns; /* a removal or a newer version was acknowledged: only known locations lead to it, for a lease */
    uint64_t revoked_ns; /* and of a call that waited for these: nothing does */
    uint32_t gone_term; /* of the newest master that said so */
    uint32_t told_term; /* of the last master to which a node began to tell that it holds it; 0 = none */
    uint32_t proof_term; /* of the last one that a node told of a newer version, or of its removal; 0 = none */
    bool is_excused; /* it is gone, and no node has told the present master so yet */
    const char *rule; /* that a get breaks which gives it nevertheless */
    bool is_commit_sent;
    bool is_committed; /* as the master said, */
    uint32_t term; /* in this term */
    uint32_t epoch; /* of the tenant, plus 1, when it was granted; 0 = not known */
    struct put *older; /* of the key */
} put_t;

void oracle_init(sim_t *s);
void oracle_fini(sim_t *s);
void oracle_rest(sim_t *s); /* for a lease's time nobody has asked for anything but what he has in view */
void oracle_end(sim_t *s); /* all clients are gone: nothing may be left */

/* ---- what the master hears and says, in the order in which it does */
void oracle_master_hears(sim_t *s, conn_t *conn, const kvp_frame_t *f);
void oracle_master_says(sim_t *s, conn_t *conn, const kvp_frame_t *f);
/* oracle_master_has_said: all that a step made it say. Fails I7 where it refused what there is room for, USE where
 * something went and what was not used for longer stays. */
void oracle_master_has_said(sim_t *s);
void oracle_conn_over(sim_t *s, conn_t *conn); /* it heard that, or closed it */
void oracle_master_died(sim_t *s);
void oracle_master_succeeded(sim_t *s); /* there is another one, though it lives */
void oracle_master_dies(sim_t *s); /* before that: its core is still there */
void oracle_master_begins(sim_t *s);
void oracle_master_reads(sim_t *s); /* the next one has read its journal */
void oracle_mem_gone(sim_t *s, mem_t *mem);
void oracle_reports(sim_t *s, mem_t *mem); /* its node begins to tell what is in it */
mem_t *oracle_mem_of(sim_t *s, uint32_t term, uint32_t segment_id); /* NULL = never mounted */
void oracle_freed(sim_t *s, mem_t *mem, uint32_t chunk, uint32_t slot, uint64_t generation); /* its node says so */

/* ---- what clients call and are told */
put_t *oracle_put_begins(sim_t *s, uint32_t key, uint64_t len);
/* has_waited: as in ended_t. */
void oracle_put_ends(sim_t *s, put_t *put, bool has_waited, kvp_err_t err);
/* A call that takes versions away, and was answered. */
typedef struct {
    uint64_t begun_ns;
    uint32_t term; /* of the master that answered, perhaps long before the call heard of it */
    bool has_waited; /* it asked to be answered only when no lease names what is gone */
} ended_t;
void oracle_remove_ends(sim_t *s, uint32_t key, const ended_t *call, kvp_err_t err);
void oracle_pattern_removed(sim_t *s, uint32_t tenant, const char *pattern, const ended_t *call);
void oracle_bumped(sim_t *s, uint32_t tenant, const ended_t *call);

/* What a get was given, with OK. */
typedef struct {
    uint32_t key;
    const uint64_t *units;
    uint64_t len;
    bool is_known; /* from a known location */
    uint64_t at_ns; /* when the call began; of a known location: the last load of its bytes */
    bool
        is_of_elder; /* in a session with a master that is not the last: it promises nothing about what that one does */
    uint64_t lease_ns; /* for which a known location may be older than what was acknowledged */
    bool has_epoch; /* it asked for what was put in this one */
    uint32_t epoch;
} got_t;
void oracle_got(sim_t *s, const got_t *got);
/* oracle_returned: a get has given the buffer back to its caller, who overwrites it. */
void oracle_returned(sim_t *s, uint64_t *units, uint32_t n);

/* ---- keys, by number: over all tenants */
uint32_t oracle_key(const sim_t *s, uint32_t tenant, uint32_t k);
bool oracle_key_matches(const sim_t *s, uint32_t key, const char *pattern); /* "^" and how its name begins; "" */

/* ---- nodes */
void oracle_node_kills(sim_t *s, const mem_t *mem, uint32_t chunk, uint32_t slot, uint64_t before); /* that word */
void oracle_node_kept(sim_t *s, uint32_t node, uint32_t term); /* it died, and the next process knows that term */
void oracle_node_lost(sim_t *s, uint32_t node); /* it died, and its memory with it */
void oracle_node_obeys(sim_t *s, uint32_t node, uint32_t term); /* an order of that term */
void oracle_node_term(sim_t *s, uint32_t node, uint32_t term); /* the highest that it has obeyed */

#endif
