/* SPDX-License-Identifier: Apache-2.0
 * What must not wait for long at a master that runs: the answer to a removal, for a node that does not obey; and a
 * put, for a writer of its key that is silent. Only the pool's first master is asked, as long as its clock and itself
 * go on: later ones wait for leases that others gave, and time in which it did not run is not its peers'. */
#include "tests/sim/sim_oracle_priv.h"

#include "proto/pb.h"

#include "proto/kvpool.pb-c.h"

#define DEFERRED_NS (100 * MS) /* KVP_DEFERRED_MS, and the ticks of a master that has much to do */
#define HEARD_NS SEC /* by then a node that goes on has heard what it was told after that */
#define SILENT_NS (1300 * MS) /* KVP_WRITER_SILENT_MS, and a tick */

static bool
has_run(const sim_t *s)
{
    return !s->has_stepped && !s->has_stalled && s->master != NULL && master_term(s) == 1 && !master_is_elder(s);
}

/* ---- removals */
/* Whether it asked to be answered when no lease names what is gone, or is of no kind that takes anything away. */
static bool
may_wait(const ask_t *ask)
{
    const ProtobufCMessageDescriptor *type =
        ask->op == KVP_OP_REMOVE ? &kvp__pb__remove__descriptor : &kvp__pb__put_commit__descriptor;
    bool may = true;
    kvp_pb_t pb;
    void *head;

    if (ask->op != KVP_OP_REMOVE && ask->op != KVP_OP_PUT_COMMIT) return true;
    head = kvp_pb_unpack(&pb, type, &ask->frame);
    if (head != NULL)
        may = ask->op == KVP_OP_REMOVE ? ((Kvp__Pb__Remove *)head)->wait : ((Kvp__Pb__PutCommit *)head)->wait;
    kvp_pb_free(&pb, head);
    return may;
}

/* Whether some node that hears the master spoke after it was told of the removal: it has answered that as well. Where
 * none did, only the master knows what the answer would promise. */
static bool
is_known_to_node(sim_t *s, const ask_t *ask)
{
    uint32_t there = master_party(s)->host;

    for (const mem_t *mem = s->mems; mem != NULL; mem = mem->older) {
        const conn_t *c = mem->conn == 0 || mem->is_gone ? NULL : s->conns[mem->conn - 1];

        if (c == NULL || c->is_cut || s->cut_until[there][c->end[0].who->host] > ask->heard_ns) continue;
        if (mem->mounted_ns > ask->heard_ns) continue;
        if (c->end[0].who->woken_ns + HEARD_NS > s->now) continue; /* its first words answer what it was told before */
        if (c->heard_ns > ask->heard_ns + HEARD_NS && c->heard_ns < s->now) return true;
    }
    return false;
}

void
time_said(sim_t *s, const ask_t *ask)
{
    if (!has_run(s) || s->plan->has_journal || may_wait(ask) || s->now - ask->heard_ns <= DEFERRED_NS) return;
    if (!is_known_to_node(s, ask)) return;
    sim_fail(s, "LIVENESS", "the answer to %s took %.3f us", ask->op == KVP_OP_REMOVE ? "a removal" : "a commit",
             (double)(s->now - ask->heard_ns) / 1e3);
}

/* ---- silent writers */
static attempt_t *
newest_of(sim_t *s, kvp_digest_t digest)
{
    attempt_t *a = s->oracle->attempts;

    while (a != NULL && !kvp_digest_eq(a->digest, digest))
        a = a->next;
    return a;
}

/* Its key is another's who asks for it, if nobody has asked yet to whom it may have been given. */
static bool
must_be_taken(const sim_t *s, const attempt_t *a)
{
    return has_run(s) && a->asked_n == 0 && !a->is_over && s->now - a->conn->heard_ns > SILENT_NS;
}

void
time_heard(sim_t *s, const conn_t *conn, ask_t *ask)
{
    const kvp_wire_put_t *puts = (const kvp_wire_put_t *)ask->frame.tail;
    Kvp__Pb__PutBegin *head;
    kvp_pb_t pb;

    if (ask->op != KVP_OP_PUT_BEGIN || s->plan->group_keys > 0)
        return; /* a group's key may be another member's owner's */
    head = kvp_pb_unpack(&pb, &kvp__pb__put_begin__descriptor, &ask->frame);
    for (uint32_t i = 0; head != NULL && i < head->n && i < CALL_KEYS_MAX; i++) {
        attempt_t *a = newest_of(s, puts[i].digest);

        if (a == NULL) continue;
        if (a->conn != conn && must_be_taken(s, a)) ask->must_take |= 1ull << i;
        ask->others[i] = a;
        a->asked_n++;
    }
    kvp_pb_free(&pb, head);
}

void
time_put_said(sim_t *s, const ask_t *ask, uint32_t at, kvp_err_t err)
{
    if (err != KVP_IN_PROGRESS || at >= CALL_KEYS_MAX || ask->others[at] == NULL) return;
    ask->others[at]->asked_n--; /* nobody has got it by this */
    if ((ask->must_take >> at & 1) != 0)
        sim_fail(s, "LIVENESS", "the key of a writer that is silent for %.3f us is not given to another",
                 (double)(s->now - ask->others[at]->conn->heard_ns) / 1e3);
}
