/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - A probe is an object of its own, put at the one wanted node (kvpool_opts_t.segment), over a handle with a single
 *   transport, so the path of its bytes is known. A small probe goes first: it makes the connections, which are not
 *   measured. If the small one passes and the large one does not, packets of full size are lost.
 * - The probe is removed by force on every result: a put that timed out may have been committed. */
#include "tools/doctor/pool.h"

#include "tools/base/http.h"
#include "tools/base/json_out.h"

#include "common/clock.h"
#include "common/hostid.h"

#include <stdlib.h>
#include <string.h>

#define HOST_JSON_BYTES (64u << 10)
#define PROBE_NS (3 * KVP_NS_PER_S)
#define MASTER_DEFAULT "127.0.0.1:50051"

static const char *const names[KVP_DOCTOR_TRANSPORTS] = {"shm", "rdma", "tcp"};

static void
copy_text(struct json_object *in, const char *name, char *to, size_t cap)
{
    snprintf(to, cap, "%s", kvp_json_get_text(in, name));
}

/* ---- facts about this machine from libkvpool */
static const char *
text_of_variable(const char *name)
{
    const char *text = getenv(name);

    return text == NULL ? "" : text;
}

static bool
is_set(const char *variable)
{
    return text_of_variable(variable)[0] != '\0';
}

static const char *
named_list(const kvp_cli_common_t *common)
{
    return common->transports != NULL ? common->transports : text_of_variable("KVPOOL_TRANSPORTS");
}

/* Marks the transports of the list as named. Returns false for an unknown name. */
static bool
note_named(const char *list, kvp_doctor_facts_t *facts)
{
    for (const char *at = list; *at != '\0';) {
        const size_t len = strcspn(at, ",");
        bool is_known = false;

        for (size_t i = 0; i < KVP_DOCTOR_TRANSPORTS; i++) {
            if (strlen(names[i]) != len || memcmp(names[i], at, len) != 0) continue;
            facts->transports[i].is_named = is_known = true;
        }
        if (!is_known) return false;
        at += len;
        at += *at == ',';
    }
    for (size_t i = 0; i < KVP_DOCTOR_TRANSPORTS; i++) {
        kvp_doctor_transport_t *it = &facts->transports[i];

        it->is_out = list[0] != '\0' && !it->is_named;
        it->is_wished =
            strcmp(it->name, "rdma") == 0 && (is_set("KVPOOL_RDMA_DEVICE") || is_set("KVPOOL_RDMA_GID_INDEX"));
    }
    return true;
}

static void
note_port(struct json_object *from, kvp_doctor_facts_t *facts)
{
    for (size_t i = 0; i < facts->ports_n; i++) {
        kvp_doctor_port_t *port = &facts->ports[i];

        if (strcmp(port->device, kvp_json_get_text(from, "device")) != 0 ||
            port->port != kvp_json_get_u64(from, "port"))
            continue;
        port->is_used = true;
        copy_text(from, "address", port->address, sizeof port->address);
        port->mtu_bytes = (uint32_t)kvp_json_get_u64(from, "mtu_bytes");
        port->max_registration_bytes = kvp_json_get_u64(from, "max_registration_bytes");
        port->max_work_requests = (uint32_t)kvp_json_get_u64(from, "max_work_requests");
    }
}

int
kvp_doctor_ask_library(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, kvp_doctor_facts_t *facts)
{
    char *text = kvp_cli_alloc(HOST_JSON_BYTES, 1);
    struct json_object *host = NULL, *list;
    size_t len = 0;

    for (size_t i = 0; i < KVP_DOCTOR_TRANSPORTS; i++)
        snprintf(facts->transports[i].name, sizeof facts->transports[i].name, "%s", names[i]);
    snprintf(facts->own_software, sizeof facts->own_software, "kvpool %s", kvpool_version());
    if (!note_named(named_list(common), facts)) {
        free(text);
        return kvp_cli_complain(verb, KVP_EXIT_USAGE, "%s \"%s\": there are shm, rdma and tcp",
                                common->transports != NULL ? "--transports" : "KVPOOL_TRANSPORTS", named_list(common));
    }
    if (kvpool_host(text, HOST_JSON_BYTES, &len) == KVPOOL_OK) host = json_tokener_parse(text);
    free(text);
    if (host == NULL)
        return kvp_cli_complain(
            verb, KVP_EXIT_USAGE,
            "KVPOOL_RDMA_DEVICE \"%s\", KVPOOL_RDMA_GID_INDEX \"%s\": NAME[:PORT][,NAME[:PORT]] with "
            "no name twice, and a number from 0 to 65535, are expected",
            text_of_variable("KVPOOL_RDMA_DEVICE"), text_of_variable("KVPOOL_RDMA_GID_INDEX"));
    for (size_t i = kvp_json_get_list(host, "transports", &list); i > 0; i--) {
        struct json_object *it = json_object_array_get_idx(list, i - 1);

        for (size_t t = 0; t < KVP_DOCTOR_TRANSPORTS; t++) {
            if (strcmp(names[t], kvp_json_get_text(it, "name")) != 0) continue;
            facts->transports[t].is_usable = json_object_get_boolean(kvp_json_get(it, "is_usable"));
            copy_text(it, "why", facts->transports[t].why, sizeof facts->transports[t].why);
        }
    }
    for (size_t i = kvp_json_get_list(host, "rdma_ports", &list); i > 0; i--)
        note_port(json_object_array_get_idx(list, i - 1), facts);
    json_object_put(host);
    return KVP_EXIT_DONE;
}

/* ---- facts about the pool */

/* open_by opens the pool with only the given transports. Errors are not logged, because they become findings;
 * `why` (cap bytes) receives the reason. */
static int
open_by(const kvp_cli_common_t *common, const char *transports, char *why, size_t cap, kvpool_t **pool_out)
{
    kvpool_conf_t conf = kvp_cli_conf(common);

    conf.transports = transports;
    conf.detail = why; /* a detail buffer also keeps errors out of the log */
    conf.detail_cap = cap;
    conf.locations = UINT32_MAX;
    conf.probes = true;
    return kvpool_open(&conf, pool_out);
}

static bool
may_use(const kvp_doctor_facts_t *facts, size_t i)
{
    return facts->transports[i].is_usable && !facts->transports[i].is_out;
}

static void
read_node(struct json_object *from, const char *host_id, kvp_doctor_node_t *node)
{
    copy_text(from, "node", node->name, sizeof node->name);
    copy_text(from, "state", node->state, sizeof node->state);
    copy_text(from, "addr", node->addr, sizeof node->addr);
    copy_text(from, "protection", node->protection, sizeof node->protection);
    copy_text(from, "offers", node->offers, sizeof node->offers);
    copy_text(from, "host_id", node->host_id, sizeof node->host_id);
    copy_text(from, "transport", node->transport, sizeof node->transport);
    node->segment_id = (uint32_t)kvp_json_get_u64(from, "segment_id");
    node->size_bytes = kvp_json_get_u64(from, "size_bytes");
    node->objects = kvp_json_get_u64(from, "objects");
    node->chunk_bytes = kvp_json_get_u64(from, "chunk_bytes");
    node->is_here = strcmp(node->host_id, host_id) == 0;
    node->drain_evicted = kvp_json_get_u64(from, "evicted_objects");
    node->drain_ssd = kvp_json_get_u64(from, "ssd_objects");
    copy_text(from, "waits_for", node->drain_waits, sizeof node->drain_waits);
    node->is_drained = strcmp(kvp_json_get_text(from, "drain"), "done") == 0;
}

static void
read_wrong(struct json_object *figures, kvp_doctor_facts_t *facts)
{
    struct json_object *list;

    facts->wrong_n = kvp_min_u64(kvp_json_get_list(figures, "why", &list), KVP_DOCTOR_WRONG_MAX);
    for (size_t i = 0; i < facts->wrong_n; i++) {
        struct json_object *from = json_object_array_get_idx(list, i);

        copy_text(from, "code", facts->wrong[i].code, sizeof facts->wrong[i].code);
        copy_text(from, "text", facts->wrong[i].text, sizeof facts->wrong[i].text);
    }
}

/* Writes the HTTP addresses of the masters that this host can reach. */
static void
read_https(struct json_object *stat, kvp_doctor_facts_t *facts)
{
    struct json_object *masters;
    char at[KVP_HTTP_TEXT_MAX];

    for (size_t i = kvp_json_get_list(stat, "masters", &masters); i > 0; i--) {
        const size_t len = strlen(facts->https);

        if (kvp_cli_http_of(json_object_array_get_idx(masters, i - 1), at) &&
            len + strlen(at) + 2 <= sizeof facts->https)
            snprintf(facts->https + len, sizeof facts->https - len, "%s%s", len > 0 ? "," : "", at);
    }
}

static int
read_pool(const kvp_cli_common_t *common, kvpool_t *pool, kvp_doctor_facts_t *facts)
{
    char own[KVP_HOST_ID_MAX + 1];
    struct json_object *stat, *list, *figures;
    size_t n;
    int err = kvp_json_stat(pool, 0, &stat);

    if (err != KVPOOL_OK) return err;
    kvp_host_id(own);
    figures = kvp_json_get(stat, "pool");
    copy_text(figures, "software", facts->pool_software, sizeof facts->pool_software);
    copy_text(figures, "protection", facts->protection, sizeof facts->protection);
    facts->is_log_refusing = kvp_json_get_u64(kvp_json_get(figures, "counters"), "log_refuses") > 0;
    read_wrong(figures, facts);
    read_https(stat, facts);
    n = kvp_json_get_list(stat, "segments", &list);
    facts->has_more_nodes = n > KVP_DOCTOR_NODES_MAX;
    facts->nodes_n = kvp_min_u64(n, KVP_DOCTOR_NODES_MAX);
    facts->nodes = kvp_cli_alloc(facts->nodes_n, sizeof *facts->nodes);
    for (size_t i = 0; i < facts->nodes_n; i++)
        read_node(json_object_array_get_idx(list, i), common->host_id != NULL ? common->host_id : own,
                  &facts->nodes[i]);
    facts->tiers_n = kvp_min_u64(kvp_json_get_list(stat, "tiers", &list), KVP_DOCTOR_NODES_MAX);
    facts->tiers = kvp_cli_alloc(facts->tiers_n, sizeof *facts->tiers);
    for (size_t i = 0; i < facts->tiers_n; i++)
        read_node(json_object_array_get_idx(list, i), own, &facts->tiers[i]);
    json_object_put(stat);
    return KVPOOL_OK;
}

/* ---- probes of the nodes */
typedef struct {
    kvpool_t *pool;
    kvpool_opts_t opts;
    char key[128];
    unsigned char *sent, *got; /* buffers for the sent and the received bytes, of KVP_DOCTOR_PROBE_BYTES each */
} probing_t;

/* run_probe puts and gets an object of len bytes. It records the error of the put or of the get, and whether the
 * get returned other bytes. */
static void
run_probe(probing_t *p, size_t len, kvp_doctor_probe_t *probe)
{
    kvpool_opts_t fresh = p->opts;
    uint64_t began_ns = kvp_now_ns();
    size_t got_len = 0;

    fresh.flags = KVPOOL_FRESH;
    fresh.detail = NULL;
    probe->err = kvpool_put(p->pool, p->key, strlen(p->key), p->sent, len, &p->opts);
    probe->put_ns = kvp_now_ns() - began_ns;
    if (probe->err == KVPOOL_OK) {
        began_ns = kvp_now_ns();
        probe->get_err = kvpool_get(p->pool, p->key, strlen(p->key), p->got, KVP_DOCTOR_PROBE_BYTES, &got_len, &fresh);
        probe->get_ns = kvp_now_ns() - began_ns;
        probe->is_wrong = probe->get_err == KVPOOL_OK && (got_len != len || memcmp(p->sent, p->got, len) != 0);
    }
    fresh.flags = KVPOOL_FORCE;
    const int err = kvpool_remove(p->pool, p->key, strlen(p->key), &fresh);
    probe->is_left |= err != KVPOOL_OK && err != KVPOOL_NOT_FOUND;
}

static void
probe_node(probing_t *p, const kvp_doctor_node_t *node, const char *name, kvp_doctor_probe_t *probe)
{
    const uint64_t run = kvp_random_u64();

    probe->was_made = true;
    p->opts.detail = probe->detail;
    p->opts.detail_cap = sizeof probe->detail;
    p->opts.segment = node->segment_id;
    for (size_t i = 0; i < KVP_DOCTOR_PROBE_BYTES; i++)
        p->sent[i] = (unsigned char)(run >> i % 8 * 8 ^ i);
    snprintf(p->key, sizeof p->key, "kvpool-doctor/%016llx/%u/%s/small", (unsigned long long)run, node->segment_id,
             name);
    run_probe(p, KVP_DOCTOR_SMALL_BYTES, probe);
    probe->small_err = probe->err != KVPOOL_OK ? probe->err : probe->get_err;
    if (probe->small_err != KVPOOL_OK || probe->is_wrong) return;
    snprintf(p->key, sizeof p->key, "kvpool-doctor/%016llx/%u/%s", (unsigned long long)run, node->segment_id, name);
    run_probe(p, KVP_DOCTOR_PROBE_BYTES, probe);
}

/* Returns whether the node is to be probed by the transport: it is up, offers it and, for shm, is on this host. */
static bool
leads_there(const kvp_doctor_node_t *node, const char *name)
{
    char list[sizeof node->offers + 2], wanted[16];

    if (strcmp(node->state, "up") != 0) return false;
    if (strcmp(name, "shm") == 0 && !node->is_here) return false;
    snprintf(list, sizeof list, ",%s,", node->offers);
    snprintf(wanted, sizeof wanted, ",%s,", name);
    return strstr(list, wanted) != NULL;
}

static void
probe_by(const kvp_cli_common_t *common, kvp_doctor_facts_t *facts, size_t which)
{
    probing_t p = {
        .opts = {.struct_size = sizeof p.opts,
                 .deadline_ms = (uint32_t)(kvp_min_u64(common->deadline_ns, PROBE_NS) / KVP_NS_PER_MS)},
        .sent = kvp_cli_alloc(KVP_DOCTOR_PROBE_BYTES, 1),
        .got = kvp_cli_alloc(KVP_DOCTOR_PROBE_BYTES, 1),
    };

    /* If the pool can no longer be opened, all probes get the error. */
    char why[8];
    const int err = open_by(common, names[which], why, sizeof why, &p.pool);
    for (size_t i = 0; i < facts->nodes_n; i++) {
        kvp_doctor_probe_t *probe = &facts->nodes[i].probes[which];

        if (!leads_there(&facts->nodes[i], names[which])) continue;
        if (err == KVPOOL_OK)
            probe_node(&p, &facts->nodes[i], names[which], probe);
        else
            *probe = (kvp_doctor_probe_t){.was_made = true, .err = err, .small_err = err};
    }
    if (err == KVPOOL_OK) kvpool_free(p.pool);
    free(p.sent);
    free(p.got);
}

/* Marks all nodes as reached by no transport if the configured transports cannot open the pool: the doctor then has
 * read the pool over other transports. */
static void
forget_ways(kvp_doctor_facts_t *facts)
{
    bool is_refused = false;

    for (size_t i = 0; i < KVP_DOCTOR_TRANSPORTS; i++)
        is_refused |= kvp_doctor_is_refused(&facts->transports[i]);
    for (size_t i = 0; i < facts->nodes_n && is_refused; i++)
        snprintf(facts->nodes[i].transport, sizeof facts->nodes[i].transport, "none");
}

void
kvp_doctor_ask_pool(const kvp_cli_common_t *common, kvp_doctor_facts_t *facts)
{
    const char *master = common->master != NULL ? common->master : MASTER_DEFAULT;
    const uint64_t began_ns = kvp_now_ns();
    char list[32] = "";
    kvpool_t *pool;

    snprintf(facts->master, sizeof facts->master, "%s", master);
    for (size_t i = 0; i < KVP_DOCTOR_TRANSPORTS; i++)
        if (may_use(facts, i))
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", *list ? "," : "", names[i]);
    /* If no configured transport works, the pool is read over tcp, so that its nodes are still shown. */
    facts->pool_err = open_by(common, *list != '\0' ? list : "tcp", facts->pool_why, sizeof facts->pool_why, &pool);
    facts->open_ns = kvp_now_ns() - began_ns;
    if (facts->pool_err != KVPOOL_OK) return;
    facts->pool_err = read_pool(common, pool, facts);
    kvpool_free(pool);
    forget_ways(facts);
    for (size_t i = 0; i < KVP_DOCTOR_TRANSPORTS && facts->pool_err == KVPOOL_OK; i++)
        if (may_use(facts, i)) probe_by(common, facts, i);
}
