/* SPDX-License-Identifier: Apache-2.0
 * The verb `doctor`: prints the facts and then the findings, as text or as one JSON object. */
#include "tools/base/cli.h"

#include "tools/base/opts.h"
#include "tools/doctor/pool.h"
#include "tools/base/json_out.h"
#include "tools/base/report.h"

#include <stdlib.h>
#include <string.h>

#define SHOWN_MAX 512u

typedef struct {
    kvp_doctor_facts_t facts;
    kvp_doctor_finding_t findings[KVP_DOCTOR_FINDINGS_MAX];
    size_t findings_n;
} doctor_t;

/* ---- output as text */

/* Escapes control characters in a text from a node or the kernel, so that the text cannot move the terminal's
 * cursor. */
static const char *
quote_text(const char *text, char dst[SHOWN_MAX])
{
    return kvp_cli_quote(text, strlen(text), dst, SHOWN_MAX);
}

static void
say_limit(const char *what, uint64_t limit, bool is_bytes)
{
    char bytes[KVP_BYTES_TEXT_MAX];

    if (limit == KVP_DOCTOR_NO_LIMIT)
        printf("  %-10s  unlimited\n", what);
    else if (is_bytes)
        printf("  %-10s  %s\n", what, kvp_format_bytes(limit, bytes));
    else
        printf("  %-10s  %llu\n", what, (unsigned long long)limit);
}

static void
say_machine(const kvp_doctor_facts_t *f)
{
    printf("this machine\n");
    say_limit("memlock", f->memlock_bytes, true);
    say_limit("open files", f->open_files, false);
    say_limit("mappings", f->mappings_max, false);
    for (size_t i = 0; i < KVP_DOCTOR_TRANSPORTS; i++) {
        const kvp_doctor_transport_t *t = &f->transports[i];

        printf("  %-10s  %s\n", t->name, !t->is_usable ? t->why : t->is_out ? "left out" : "works here");
    }
}

static void
say_port(const kvp_doctor_port_t *port)
{
    char bytes[KVP_BYTES_TEXT_MAX];

    printf("  %s:%u  %s  %s  %s", port->device, port->port, port->state, port->link_layer, port->rate);
    if (port->netdev[0] != '\0') printf("  %s mtu %u", port->netdev, port->netdev_mtu_bytes);
    if (port->numa_node >= 0) printf("  numa %d", port->numa_node);
    putchar('\n');
    for (size_t i = 0; i < port->gids_n; i++)
        printf("    GID %-3d  %s  %s\n", port->gids[i].index, port->gids[i].address, port->gids[i].type);
    if (!port->is_used) return;
    printf("    used at %s: packets of %u bytes, %u work requests, registrations up to %s\n", port->address,
           port->mtu_bytes, port->max_work_requests, kvp_format_bytes(port->max_registration_bytes, bytes));
}

static void
say_probe(const kvp_doctor_probe_t *probe, const char *name)
{
    const int err = probe->err != KVPOOL_OK ? probe->err : probe->get_err;

    if (err != KVPOOL_OK || probe->is_wrong)
        printf("    %-4s  %s\n", name, probe->is_wrong ? "wrong bytes" : kvpool_errname(err));
    else
        printf("    %-4s  put %.1f us  get %.1f us\n", name, (double)probe->put_ns / 1e3, (double)probe->get_ns / 1e3);
}

static void
say_pool(const kvp_doctor_facts_t *f)
{
    char name[SHOWN_MAX], text[SHOWN_MAX];

    printf("\npool at %s\n", f->master);
    if (f->pool_err != KVPOOL_OK) {
        printf("  %s: %s\n", kvpool_errname(f->pool_err), quote_text(f->pool_why, text));
        return;
    }
    printf("  version %s, %zu nodes, opened in %.1f ms\n", quote_text(f->pool_software, text), f->nodes_n,
           (double)f->open_ns / 1e6);
    if (f->protection[0] != '\0') printf("  protection  %s\n", quote_text(f->protection, text));
    for (size_t i = 0; i < f->nodes_n; i++) {
        const kvp_doctor_node_t *node = &f->nodes[i];

        printf("  %s  %s", quote_text(node->name, name), node->state);
        printf("  %s", quote_text(node->addr, text));
        if (strcmp(node->state, "lost") != 0) printf("  by %s", node->transport);
        putchar('\n');
        if (node->protection[0] != '\0') printf("    protection  %s\n", quote_text(node->protection, text));
        for (size_t t = 0; t < KVP_DOCTOR_TRANSPORTS; t++)
            if (node->probes[t].was_made) say_probe(&node->probes[t], f->transports[t].name);
    }
}

static void
say_findings(const doctor_t *d)
{
    char text[2 * SHOWN_MAX];

    printf("\n%s\n", d->findings_n == 0 ? "nothing to mend" : "findings");
    for (size_t i = 0; i < d->findings_n; i++) {
        const kvp_doctor_finding_t *it = &d->findings[i];

        printf("  %-7s  %s\n", kvp_doctor_severity_name(it->severity),
               kvp_cli_quote(it->what, strlen(it->what), text, sizeof(text)));
        if (it->fix[0] != '\0')
            printf("           fix: %s\n", kvp_cli_quote(it->fix, strlen(it->fix), text, sizeof(text)));
    }
}

static void
print_text(const doctor_t *d)
{
    say_machine(&d->facts);
    if (d->facts.ports_n > 0) printf("\nRDMA ports\n");
    for (size_t i = 0; i < d->facts.ports_n; i++)
        say_port(&d->facts.ports[i]);
    say_pool(&d->facts);
    say_findings(d);
}

/* ---- output as JSON */
static void
add_text(struct json_object *to, const char *key, const char *value)
{
    json_object_object_add(to, key, json_object_new_string(value));
}

static void
add_number(struct json_object *to, const char *key, uint64_t value)
{
    json_object_object_add(to, key, json_object_new_uint64(value));
}

static void
add_bool(struct json_object *to, const char *key, bool value)
{
    json_object_object_add(to, key, json_object_new_boolean(value));
}

static struct json_object *
add_list(struct json_object *to, const char *key)
{
    struct json_object *list = json_object_new_array();

    json_object_object_add(to, key, list);
    return list;
}

static struct json_object *
add_member(struct json_object *list)
{
    struct json_object *it = json_object_new_object();

    json_object_array_add(list, it);
    return it;
}

/* Adds the limit `key` to a JSON object; "no limit" is written as null. */
static void
add_limit(struct json_object *to, const char *key, uint64_t limit)
{
    json_object_object_add(to, key, limit == KVP_DOCTOR_NO_LIMIT ? NULL : json_object_new_uint64(limit));
}

static void
write_machine(const kvp_doctor_facts_t *f, struct json_object *to)
{
    struct json_object *limits = json_object_new_object(), *list = add_list(to, "transports");

    for (size_t i = 0; i < KVP_DOCTOR_TRANSPORTS; i++) {
        struct json_object *it = add_member(list);

        add_text(it, "name", f->transports[i].name);
        add_bool(it, "is_usable", f->transports[i].is_usable);
        add_bool(it, "is_named", f->transports[i].is_named);
        add_text(it, "why", f->transports[i].why);
    }
    add_limit(limits, "memlock_bytes", f->memlock_bytes);
    add_limit(limits, "open_files", f->open_files);
    add_limit(limits, "open_files_max", f->open_files_max);
    add_limit(limits, "mappings_max", f->mappings_max);
    add_limit(limits, "memory_bytes", f->ram.total_bytes);
    add_limit(limits, "memory_available_bytes", f->ram.available_bytes);
    add_text(limits, "shmem_huge_pages", f->shmem_huge);
    json_object_object_add(to, "limits", limits);
}

static void
write_port(const kvp_doctor_port_t *port, struct json_object *to)
{
    struct json_object *gids = add_list(to, "gids");

    add_text(to, "device", port->device);
    add_number(to, "port", port->port);
    add_text(to, "state", port->state);
    add_text(to, "link_layer", port->link_layer);
    add_text(to, "rate", port->rate);
    add_text(to, "interface", port->netdev);
    add_number(to, "interface_mtu_bytes", port->netdev_mtu_bytes);
    json_object_object_add(to, "numa_node", json_object_new_int(port->numa_node));
    add_bool(to, "is_used", port->is_used);
    add_text(to, "address", port->address);
    add_number(to, "mtu_bytes", port->mtu_bytes);
    add_number(to, "max_registration_bytes", port->max_registration_bytes);
    add_number(to, "max_work_requests", port->max_work_requests);
    for (size_t i = 0; i < port->gids_n; i++) {
        struct json_object *gid = add_member(gids);

        json_object_object_add(gid, "index", json_object_new_int(port->gids[i].index));
        add_text(gid, "gid", port->gids[i].address);
        add_text(gid, "type", port->gids[i].type);
    }
}

static void
write_node(const kvp_doctor_facts_t *f, const kvp_doctor_node_t *node, struct json_object *to)
{
    struct json_object *probes = add_list(to, "probes");

    add_text(to, "node", node->name);
    add_number(to, "segment_id", node->segment_id);
    add_text(to, "state", node->state);
    add_text(to, "addr", node->addr);
    add_text(to, "offers", node->offers);
    add_text(to, "transport", node->transport);
    add_text(to, "protection", node->protection);
    for (size_t i = 0; i < KVP_DOCTOR_TRANSPORTS; i++) {
        const kvp_doctor_probe_t *probe = &node->probes[i];
        const int err = probe->err != KVPOOL_OK ? probe->err : probe->get_err;
        struct json_object *it;

        if (!probe->was_made) continue;
        it = add_member(probes);
        add_text(it, "transport", f->transports[i].name);
        add_text(it, "result", probe->is_wrong ? "WRONG_BYTES" : kvpool_errname(err));
        add_number(it, "size_bytes", KVP_DOCTOR_PROBE_BYTES);
        json_object_object_add(it, "put_us", json_object_new_double((double)probe->put_ns / 1e3));
        json_object_object_add(it, "get_us", json_object_new_double((double)probe->get_ns / 1e3));
    }
}

static void
write_pool(const kvp_doctor_facts_t *f, struct json_object *to)
{
    struct json_object *pool = json_object_new_object(), *nodes = add_list(to, "nodes");

    add_text(pool, "master", f->master);
    add_text(pool, "result", kvpool_errname(f->pool_err));
    add_text(pool, "software", f->pool_software);
    add_text(pool, "protection", f->protection);
    json_object_object_add(pool, "open_ms", json_object_new_double((double)f->open_ns / 1e6));
    json_object_object_add(to, "pool", pool);
    for (size_t i = 0; i < f->nodes_n; i++)
        write_node(f, &f->nodes[i], add_member(nodes));
}

static void
print_json(const doctor_t *d, bool is_healthy)
{
    struct json_object *to = json_object_new_object(), *list;

    add_bool(to, "is_healthy", is_healthy);
    list = add_list(to, "findings");
    for (size_t i = 0; i < d->findings_n; i++) {
        struct json_object *it = add_member(list);

        add_text(it, "severity", kvp_doctor_severity_name(d->findings[i].severity));
        add_text(it, "code", d->findings[i].code);
        add_text(it, "what", d->findings[i].what);
        add_text(it, "fix", d->findings[i].fix);
    }
    write_machine(&d->facts, to);
    list = add_list(to, "rdma_ports");
    for (size_t i = 0; i < d->facts.ports_n; i++)
        write_port(&d->facts.ports[i], add_member(list));
    write_pool(&d->facts, to);
    kvp_json_line(to, stdout);
}

/* ---- the order of the steps of the verb */
static bool
is_healthy(const doctor_t *d)
{
    for (size_t i = 0; i < d->findings_n; i++)
        if (d->findings[i].severity == KVP_DOCTOR_ERROR) return false;
    return true;
}

static int
examine_all(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, char *http, doctor_t *d)
{
    int code = kvp_doctor_ask_library(verb, common, &d->facts);

    if (code != KVP_EXIT_DONE) return code;
    kvp_doctor_ask_pool(common, &d->facts);
    kvp_doctor_look_at_disks(&d->facts);
    if (http != NULL || d->facts.https[0] != '\0')
        kvp_doctor_ask_daemons(&d->facts, http != NULL ? http : d->facts.https, http != NULL);
    d->findings_n = kvp_doctor_judge(&d->facts, d->findings, KVP_ARRAY_LEN(d->findings));
    if (common->is_json)
        print_json(d, is_healthy(d));
    else
        print_text(d);
    code = is_healthy(d) ? KVP_EXIT_DONE : KVP_EXIT_REFUSED;
    return kvp_cli_flush(verb, d->facts.pool_err != KVPOOL_OK ? KVP_EXIT_UNREACHABLE : code);
}

int
kvp_cli_doctor(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    char *http = NULL;
    const kvp_cli_opt_t opt = {
        "http",
        KVP_CLI_TEXT,
        &http,
        "[https://]HOST:PORT[,...]",
        "check the daemons with these --http addresses: version, clock, engines (default: the masters)",
        0,
        0};
    kvp_cli_common_t common;
    int first;
    int code = kvp_cli_parse(verb, &opt, 1, argc, argv, &common, &first);

    if (code != KVP_EXIT_GO_ON) return code;
    doctor_t *d = kvp_cli_alloc(1, sizeof(*d));
    kvp_doctor_look_here("", &d->facts);
    code = examine_all(verb, &common, http, d);
    free(d->facts.tiers);
    free(d->facts.nodes);
    free(d);
    return code;
}
