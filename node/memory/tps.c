/* SPDX-License-Identifier: Apache-2.0
 * The transports that serve a node's memory, and their lanes (the threads that serve data). */
#include "node/memory/tps.h"

#include "common/clock.h"
#include "common/log.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define LANE_BACK_OFF_NS (10 * KVP_NS_PER_MS)
#define WHY_MAX 512u

static void *
lane_main(void *arg)
{
    const kvp_node_lane_t *l = arg;
    struct timespec back_off = {.tv_nsec = LANE_BACK_OFF_NS};
    kvp_log_limit_t limit = {.burst = 1, .interval_ms = 10000};
    uint32_t missed;

    while (!atomic_load(l->is_stopping)) {
        kvp_err_t err = l->tp->ops->serve(l->tp, l->lane, -1);

        if (err == KVP_OK) continue;
        if (kvp_log_limit_ok(&limit, &missed))
            kvp_log_error("node", "serving by %s fails: %s", l->tp->ops->name, kvp_err_text(err));
        nanosleep(&back_off, NULL);
    }
    return NULL;
}

static kvp_err_t
start_lanes(kvp_node_tps_t *t, kvp_tp_t *tp, uint32_t lanes)
{
    /* serve with a wait of 0 returns NOTSUP if the transport has no serving side. */
    if (tp->ops->serve(tp, 0, 0) == KVP_NOTSUP) return KVP_OK;
    for (uint32_t i = 0; i < lanes; i++) {
        kvp_node_lane_t *l = &t->lanes[t->lanes_n];
        char name[32];
        kvp_err_t err;

        *l = (kvp_node_lane_t){.tp = tp, .lane = i, .is_stopping = &t->is_stopping};
        snprintf(name, sizeof name, "kvp-%s-%u", tp->ops->name, i);
        err = kvp_thread_start(&l->thread, name, lane_main, l);
        if (err != KVP_OK) return err;
        t->lanes_n++;
    }
    return KVP_OK;
}

static kvp_err_t
register_mem(kvp_node_tps_t *t, size_t at)
{
    bool is_slow = (t->tps[at]->ops->caps & KVP_TP_SLOW_REG) != 0;

    for (uint32_t i = 0; i < t->mem->chunk_n; i++)
        atomic_store(&t->mem->chunks[i].mrs_err[at], is_slow ? KVP_EAGAIN : KVP_OK);
    if (is_slow) return kvp_node_pin_check(t->tps[at], t->mem);
    for (uint32_t i = 0; i < t->mem->chunk_n; i++) {
        kvp_node_chunk_t *c = &t->mem->chunks[i];
        kvp_err_t err = kvp_mr_create(t->tps[at], &c->payload, &c->payload_mrs[at]);

        if (err == KVP_OK) err = kvp_mr_create(t->tps[at], &c->meta, &c->meta_mrs[at]);
        if (err != KVP_OK) return err;
    }
    return KVP_OK;
}

static void
unregister_mem(kvp_node_tps_t *t, size_t at)
{
    for (uint32_t i = 0; i < t->mem->chunk_n; i++) {
        kvp_node_chunk_t *c = &t->mem->chunks[i];

        kvp_mr_destroy(c->payload_mrs[at]);
        kvp_mr_destroy(c->meta_mrs[at]);
        c->payload_mrs[at] = c->meta_mrs[at] = NULL;
    }
}

static kvp_err_t
listen_by_itself(kvp_tp_t *tp, const kvp_hostport_t *at)
{
    kvp_hostport_t bound;

    return (tp->ops->caps & KVP_TP_OWN_PORT) == 0 ? KVP_OK : tp->ops->listen(tp, at, &bound);
}

/* add_tp adds a transport's instance: registers the memory if that is quick, and opens the port. No lane serves yet. */
static kvp_err_t
add_tp(kvp_node_tps_t *t, const kvp_transport_ops_t *ops, const kvp_tp_conf_t *conf, const kvp_hostport_t *listen_at)
{
    size_t at = t->tps_n;
    kvp_err_t err = kvp_tp_create(ops, conf, &t->tps[at]);

    if (err != KVP_OK) return err;
    err = register_mem(t, at);
    if (err == KVP_OK) err = listen_by_itself(t->tps[at], listen_at);
    if (err == KVP_BUSY) err = KVP_SYS; /* another program has the port, and waiting does not cure this */
    if (err == KVP_OK) {
        t->tps_n++;
        return KVP_OK;
    }
    unregister_mem(t, at);
    kvp_tp_destroy(t->tps[at]);
    return err;
}

bool
kvp_node_tps_is_free(const kvp_transport_ops_t *const *ops, size_t n, const kvp_hostport_t *at)
{
    const kvp_tp_conf_t conf = {.lanes = 1};
    kvp_err_t err = KVP_OK;
    kvp_tp_t *tp;

    kvp_log_hush(true); /* nothing is logged here: kvp_node_tps_start logs why a transport does not work */
    for (size_t i = 0; i < n && err != KVP_BUSY; i++) {
        if ((ops[i]->caps & KVP_TP_OWN_PORT) == 0 || kvp_tp_create(ops[i], &conf, &tp) != KVP_OK) continue;
        err = listen_by_itself(tp, at);
        kvp_tp_destroy(tp);
    }
    kvp_log_hush(false);
    return err != KVP_BUSY;
}

kvp_err_t
kvp_node_tps_start(kvp_node_tps_t *t, const kvp_transport_ops_t *const *ops, size_t n, uint32_t needed, uint32_t lanes,
                   const kvp_hostport_t *listen_at, kvp_node_mem_t *mem, kvp_served_t *served)
{
    kvp_tp_conf_t conf = {.lanes = lanes, .needs_attachment = true, .served = served};
    kvp_err_t err;

    memset(t, 0, sizeof *t);
    t->mem = mem;
    memcpy(conf.pool_id, mem->conf.pool_id, sizeof conf.pool_id);
    for (size_t i = 0; i < n; i++) {
        bool has_port = (ops[i]->caps & KVP_TP_OWN_PORT) != 0, is_optional = has_port && (needed & 1u << i) == 0;
        char why[WHY_MAX] = "";

        /* The log lines of a failed transport are collected into one line, with the transport's own advice. */
        if (has_port) kvp_log_divert(why, sizeof why);
        err = add_tp(t, ops[i], &conf, listen_at);
        if (has_port) kvp_log_divert(NULL, 0);
        if (err == KVP_OK && why[0] != '\0') kvp_log_warn("node", "%s: %s", ops[i]->name, why);
        if (err != KVP_OK && is_optional) {
            kvp_log_info("node", "the memory is not served by %s, but by the other transports: %s", ops[i]->name,
                         why[0] != '\0' ? why : kvp_err_text(err));
            continue;
        }
        if (err == KVP_OK) err = start_lanes(t, t->tps[t->tps_n - 1], lanes);
        if (err == KVP_OK) continue;
        kvp_log_error("node", "cannot serve the memory by %s: %s", ops[i]->name,
                      why[0] != '\0' ? why : kvp_err_text(err));
        kvp_node_tps_stop(t);
        return err;
    }
    err = kvp_node_pin_start(&t->pin, mem, t->tps, t->tps_n);
    if (err != KVP_OK) kvp_node_tps_stop(t);
    return err;
}

void
kvp_node_tps_stop(kvp_node_tps_t *t)
{
    kvp_node_pin_stop(&t->pin);
    /* The lanes still run while memory is deregistered, because a lane must end a connection that uses the memory. */
    for (size_t i = 0; i < t->tps_n; i++)
        unregister_mem(t, i);
    atomic_store(&t->is_stopping, true);
    for (size_t i = 0; i < t->tps_n; i++)
        t->tps[i]->ops->wake(t->tps[i]);
    for (size_t i = 0; i < t->lanes_n; i++)
        pthread_join(t->lanes[i].thread, NULL);
    for (size_t i = 0; i < t->tps_n; i++)
        kvp_tp_destroy(t->tps[i]);
    t->tps_n = t->lanes_n = 0;
    t->mem = NULL;
}

void
kvp_node_tps_names(const kvp_node_tps_t *t, char names[KVP_NODE_TPS_TEXT_MAX])
{
    size_t len = 0;

    names[0] = '\0';
    for (size_t i = 0; i < t->tps_n; i++)
        len +=
            (size_t)snprintf(names + len, KVP_NODE_TPS_TEXT_MAX - len, "%s%s", i == 0 ? "" : ",", t->tps[i]->ops->name);
}

int
kvp_node_tps_find(const kvp_node_tps_t *t, const char *name)
{
    for (size_t i = 0; i < t->tps_n; i++) {
        if (strcmp(t->tps[i]->ops->name, name) == 0) return (int)i;
    }
    return -1;
}

static void
on_quiesced(void *arg)
{
    kvp_gather_done(arg);
}

static void
on_fenced(void *arg, uint64_t incarnation)
{
    (void)incarnation;
    kvp_gather_done(arg);
}

void
kvp_node_tps_quiesce(kvp_node_tps_t *t, kvp_gather_t *g)
{
    for (size_t i = 0; i < t->tps_n; i++) {
        kvp_gather_add(g);
        t->tps[i]->ops->quiesce(t->tps[i], on_quiesced, g);
    }
}

void
kvp_node_tps_fence(kvp_node_tps_t *t, kvp_idrange_t dead, uint64_t live_min, kvp_gather_t *g)
{
    for (size_t i = 0; i < t->tps_n; i++) {
        if ((t->tps[i]->ops->caps & KVP_TP_SAME_HOST) != 0) continue;
        kvp_gather_add(g);
        t->tps[i]->ops->peer_fence(t->tps[i], dead, live_min, on_fenced, g);
    }
}

void
kvp_node_tps_cut(kvp_node_tps_t *t, uint64_t incarnation)
{
    for (size_t i = 0; i < t->tps_n; i++)
        if ((t->tps[i]->ops->caps & KVP_TP_LATE_WRITES) != 0) t->tps[i]->ops->peer_cut(t->tps[i], incarnation);
}

void
kvp_node_tps_came(kvp_node_tps_t *t, uint64_t incarnation)
{
    kvp_node_pin_came(&t->pin, incarnation);
    for (size_t i = 0; i < t->tps_n; i++)
        t->tps[i]->ops->peer_came(t->tps[i], incarnation);
}

void
kvp_node_tps_left(kvp_node_tps_t *t, uint64_t incarnation)
{
    kvp_node_pin_left(&t->pin, incarnation);
    for (size_t i = 0; i < t->tps_n; i++)
        t->tps[i]->ops->peer_left(t->tps[i], incarnation);
}
