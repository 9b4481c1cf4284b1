/* SPDX-License-Identifier: Apache-2.0
 * kvpool_master_switch: sends SWITCH to the leading master, then waits for the next leader. The call needs no
 * handle. */
#include "client/kvpool.h"

#include "net/calls.h"
#include "common/trust/creds.h"
#include "net/hello.h"
#include "net/masters.h"
#include "common/waits.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include "proto/kvpool.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEADLINE_DEFAULT_MS 5000u
#define SWITCH_ID 3u
#define AGAIN_NS (300 * KVP_NS_PER_MS) /* pause between two questions to a leader that may not switch yet */

_Static_assert(KVPOOL_ADDRESS_MAX >= KVP_HOSTPORT_TEXT_MAX, "an address fits");

/* Sends SWITCH to the leader. A standby may take half of the remaining time to catch up with the log. The other half
 * is for the next leader's start. */
static kvp_err_t
send_switch(kvp_framed_t *c, uint64_t deadline_ns, char detail[256])
{
    Kvp__Pb__Switch msg = KVP__PB__SWITCH__INIT;
    char token[KVP_CREDS_TOKEN_MAX];
    Kvp__Pb__Reply *reply;
    kvp_frame_t frame;
    kvp_pb_t pb;
    kvp_err_t err;

    err = kvp_creds_token(c->is_unix || c->tls != NULL, token, &msg.token.len, detail);
    if (err != KVP_OK) return err;
    msg.token.data = (uint8_t *)token;
    msg.wait_ms = kvp_left_ms(deadline_ns) / 2;
    kvp_pb_frame(&c->out, KVP_OP_SWITCH, 0, SWITCH_ID, &msg.base, NULL, 0);
    err = kvp_exchange(c, SWITCH_ID, deadline_ns, &frame);
    if (err != KVP_OK) {
        if (kvp_framed_tls_why(c)[0] != '\0') snprintf(detail, 256, "%s", kvp_framed_tls_why(c));
        return err;
    }
    reply = kvp_pb_unpack(&pb, &kvp__pb__reply__descriptor, &frame);
    if (reply == NULL) return pb.err;
    err = reply->err > 0 ? KVP_PROTO : reply->err;
    snprintf(detail, 256, "%s", reply->detail);
    kvp_pb_free(&pb, reply);
    return err;
}

/* Waits for a leader of a higher term than `term`. */
static kvp_err_t
find_above(kvp_masters_t *m, uint32_t term, uint64_t deadline_ns, kvpool_switched_t *out)
{
    const kvp_hostport_t *at;
    kvp_framed_t c;

    for (out->term = 0; out->term <= term; out->term = kvp_masters_term(m)) {
        if (kvp_masters_find(m, NULL, deadline_ns, &c, &at) != KVP_OK) return KVP_DEADLINE;
        kvp_framed_fini(&c);
    }
    kvp_format_hostport(at, out->to);
    return KVP_OK;
}

static kvp_err_t
switch_leader(kvp_masters_t *m, uint64_t deadline_ns, kvpool_switched_t *out, char detail[256])
{
    const struct timespec pause = {.tv_nsec = AGAIN_NS};
    const kvp_hostport_t *at;
    uint64_t began_ns = 0;
    uint32_t term = 0;
    kvp_framed_t c;
    kvp_err_t err;

    do {
        if (term != 0) nanosleep(&pause, NULL);
        err = kvp_masters_find(m, NULL, deadline_ns, &c, &at);
        if (err != KVP_OK) {
            snprintf(detail, 256, "%s", kvp_masters_why(m));
            return KVP_UNREACHABLE; /* also if masters answer, but none of them is the leader */
        }
        if (term != 0 && kvp_masters_term(m) != term) { /* another master became the leader in the meantime */
            kvp_framed_fini(&c);
            err = KVP_OK;
            break;
        }
        kvp_format_hostport(at, out->from);
        term = kvp_masters_term(m);
        began_ns = kvp_now_ns();
        err = send_switch(&c, deadline_ns, detail);
        kvp_framed_fini(&c);
    } while (err == KVP_RETRY_AFTER && kvp_now_ns() + 2 * AGAIN_NS < deadline_ns);
    if (err != KVP_OK) return err;
    detail[0] = '\0';
    err = find_above(m, term, deadline_ns, out);
    out->took_us = (kvp_now_ns() - began_ns) / 1000;
    if (err == KVP_OK && strcmp(out->from, out->to) == 0) {
        snprintf(detail, 256, "no other master took the lead, so this one leads again");
        err = KVP_RETRY_AFTER;
    }
    return err;
}

int
kvpool_master_switch(const kvpool_conf_t *conf, kvpool_switched_t *switched_out)
{
    kvpool_switched_t switched = {.from = ""};
    kvp_names_t *names = NULL;
    kvp_masters_t *m = NULL;
    char detail[256] = "";
    const char *list;
    uint64_t deadline_ns;
    kvp_err_t err;

    if (conf == NULL || conf->struct_size != sizeof *conf || switched_out == NULL) return KVP_INVALID;
    if (conf->detail != NULL && conf->detail_cap > 0) conf->detail[0] = '\0';
    deadline_ns = kvp_now_ns() + (conf->deadline_ms == 0 ? DEADLINE_DEFAULT_MS : conf->deadline_ms) * KVP_NS_PER_MS;
    list = conf->master != NULL && conf->master[0] != '\0' ? conf->master : getenv("KVPOOL_MASTER");
    err = kvp_names_create(&names);
    if (err == KVP_OK) err = kvp_masters_create(list == NULL ? "" : list, conf->cluster, names, &m);
    if (err == KVP_INVALID || (err == KVP_OK && !kvp_masters_are_several(m))) {
        err = KVP_INVALID;
        snprintf(detail, sizeof detail, "all of the pool's masters are wanted, to see which leads next");
    }
    if (err == KVP_OK) err = switch_leader(m, deadline_ns, &switched, detail);
    if (err == KVP_OK) *switched_out = switched;
    if (detail[0] != '\0') err = kvp_refuse(conf->detail, conf->detail_cap, err, "switch", detail);
    kvp_masters_destroy(m);
    kvp_names_destroy(names);
    return err;
}
