/* SPDX-License-Identifier: Apache-2.0
 * The verb up: runs a whole pool on this host in the foreground. SIGINT, SIGTERM, SIGHUP, or the death of any of
 * its processes stops the pool. */
#include "tools/base/cli.h"

#include "tools/base/http.h"
#include "tools/base/opts.h"
#include "tools/base/json_out.h"
#include "tools/base/node_addr.h"
#include "tools/base/procs.h"
#include "tools/base/report.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define MEMORY_DEFAULT (256ull << 20)
#define MEMORY_MIN (64ull << 10)
#define MEMORY_MAX (1ull << 44)
#define CHUNK_MAX (64ull << 30)

static void
say_ready(const kvp_local_pool_t *local, const kvp_local_conf_t *conf, bool is_json)
{
    char bytes[KVP_BYTES_TEXT_MAX];
    if (is_json) {
        struct json_object *line = json_object_new_object(), *nodes = json_object_new_array();
        json_object_object_add(line, "master", json_object_new_string(local->master.listen));
        if (local->master.http[0] != '\0')
            json_object_object_add(line, "http", json_object_new_string(local->master.http));
        if (local->conductor.pid > 0)
            json_object_object_add(line, "conductor", json_object_new_string(local->conductor.http));
        for (uint32_t i = 0; i < local->nodes_n; i++)
            json_object_array_add(nodes, json_object_new_string(local->nodes[i].listen));
        json_object_object_add(line, "nodes", nodes);
        json_object_object_add(line, "memory_bytes_per_node", json_object_new_uint64(conf->memory_bytes[0]));
        kvp_json_line(line, stdout);
        return;
    }
    printf("KVPOOL_MASTER=%s\n", local->master.listen);
    printf("ready: a master and %u nodes of %s; ", local->nodes_n, kvp_format_bytes(conf->memory_bytes[0], bytes));
    if (local->master.http[0] != '\0') printf("metrics at http://%s/metrics; ", local->master.http);
    if (local->conductor.pid > 0) printf("conductor at http://%s/; ", local->conductor.http);
    printf("interrupt to stop\n");
}

/* Starts a conductor and registers the master's events with it. No engine is registered yet. */
static int
start_conductor(const kvp_cli_verb_t *verb, kvp_local_pool_t *local, const char *http, const char *log_level)
{
    const char *argv[] = {NULL, "--http", http, "--log-level", log_level, NULL};
    char events[KVP_LOCAL_EVENTS_MAX], replay[KVP_LOCAL_EVENTS_MAX], body[256];
    struct json_object *answer;
    const char *why;
    if (kvp_proc_start(&local->conductor, "kvpool-conductor", "kvpool-conductor", argv) != KVP_OK)
        return KVP_EXIT_REFUSED;
    snprintf(body, sizeof body,
             "{\"endpoint\": \"%s\", \"replay_endpoint\": \"%s\", \"type\": \"Mooncake\", \"instance_id\": \"pool\", "
             "\"shared\": true}",
             kvp_local_events("events", events), kvp_local_events("replay", replay));
    const kvp_err_t err = kvp_cli_http(local->conductor.http, KVP_IS_CONDUCTOR, "/register", body, &answer, &why, NULL);
    json_object_put(answer);
    if (err == KVP_OK) return KVP_EXIT_DONE;
    return kvp_cli_complain(verb, KVP_EXIT_REFUSED, "the conductor does not follow the master: %s", kvp_err_name(err));
}

/* wait_for_end sleeps until a stop signal or the death of a child. */
static int
wait_for_end(const kvp_cli_verb_t *verb, const kvp_local_pool_t *local, int signal_fd)
{
    struct pollfd fds[KVP_PROCS_NODES_MAX + 3];
    nfds_t n = 0;
    fds[n++] = (struct pollfd){.fd = signal_fd, .events = POLLIN};
    fds[n++] = (struct pollfd){.fd = local->master.pidfd, .events = POLLIN};
    for (uint32_t i = 0; i < local->nodes_n; i++)
        fds[n++] = (struct pollfd){.fd = local->nodes[i].pidfd, .events = POLLIN};
    if (local->conductor.pid > 0) fds[n++] = (struct pollfd){.fd = local->conductor.pidfd, .events = POLLIN};
    while (poll(fds, n, -1) < 0)
        if (errno != EINTR) return kvp_cli_complain(verb, KVP_EXIT_REFUSED, "poll: %s", strerror(errno));
    const kvp_proc_t *dead = kvp_local_dead(local);
    if (dead == NULL) return KVP_EXIT_DONE;
    return kvp_cli_complain(verb, KVP_EXIT_REFUSED, "%s (pid %d) has ended: stopping the rest", dead->name,
                            (int)dead->pid);
}

int
kvp_cli_up(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    uint64_t nodes = 2, memory = MEMORY_DEFAULT;
    kvp_local_conf_t conf = {.listen = "127.0.0.1:50051", .log_level = "info"};
    kvp_local_pool_t local;
    const char *node_listen = NULL, *conductor_http = KVP_CLI_CONDUCTOR;
    bool has_conductor = false;
    char listen[KVP_HOSTPORT_TEXT_MAX];
    const kvp_cli_opt_t opts[] = {
        {"nodes", KVP_CLI_U64, &nodes, "N", "nodes to start (default 2)", 1, KVP_PROCS_NODES_MAX},
        {"memory", KVP_CLI_BYTES, &memory, "SIZE", "that each node lends (default 256MiB)", MEMORY_MIN, MEMORY_MAX},
        {"chunk-bytes", KVP_CLI_BYTES, &conf.chunk_bytes, "SIZE", "of the nodes' chunks (default: they choose)",
         MEMORY_MIN, CHUNK_MAX},
        {"listen", KVP_CLI_TEXT, &conf.listen, "HOST:PORT", "of the master (default 127.0.0.1:50051; port 0: any)", 0,
         0},
        KVP_CLI_NODE_LISTEN(&node_listen),
        {"http", KVP_CLI_TEXT, &conf.http, "HOST:PORT", "of the master's metrics (default: a free port)", 0, 0},
        {"conductor", KVP_CLI_FLAG, &has_conductor, NULL, "starts a conductor, too, which follows the pool's events", 0,
         0},
        {"conductor-http", KVP_CLI_TEXT, &conductor_http, "HOST:PORT",
         "of the conductor (default " KVP_CLI_CONDUCTOR ")", 0, 0},
        {"data-dir", KVP_CLI_TEXT, &conf.data_dir, "DIR", "where the master keeps who the pool is (default none)", 0,
         0},
        {"insecure", KVP_CLI_FLAG, &conf.is_insecure, NULL,
         "allows addresses that other hosts reach, without TLS or tokens: every host can then use the pool", 0, 0},
        {"log-level", KVP_CLI_TEXT, &conf.log_level, "LEVEL", "of the daemons: error warn info debug (default info)", 0,
         0},
    };
    kvp_cli_common_t common;
    kvp_hostport_t at;
    int first;
    int code = kvp_cli_parse(verb, opts, KVP_ARRAY_LEN(opts), argc, argv, &common, &first);
    if (code == KVP_EXIT_GO_ON && kvp_parse_hostport(conf.listen, &at) != KVP_OK)
        code = kvp_cli_complain(verb, KVP_EXIT_USAGE, "\"%s\" is not HOST:PORT", conf.listen);
    if (code != KVP_EXIT_GO_ON) return code;
    code = kvp_cli_node_listen(verb, &common, node_listen, listen);
    if (code != KVP_EXIT_DONE) return code;
    const int signal_fd = kvp_stop_catch();
    if (signal_fd < 0) return kvp_cli_complain(verb, KVP_EXIT_REFUSED, "signals: %s", strerror(errno));
    conf.nodes = (uint32_t)nodes;
    conf.has_events = has_conductor;
    conf.transports = common.transports;
    conf.node_listen = listen;
    for (uint32_t i = 0; i < conf.nodes; i++)
        conf.memory_bytes[i] = memory;
    code = KVP_EXIT_REFUSED;
    if (kvp_local_start(&local, &conf) == KVP_OK) {
        code = has_conductor ? start_conductor(verb, &local, conductor_http, conf.log_level) : KVP_EXIT_DONE;
        if (code == KVP_EXIT_DONE) say_ready(&local, &conf, common.is_json);
        if (code == KVP_EXIT_DONE) code = kvp_cli_flush(verb, KVP_EXIT_DONE);
        if (code == KVP_EXIT_DONE) code = wait_for_end(verb, &local, signal_fd);
        if (kvp_local_stop(&local) > 0) code = KVP_EXIT_REFUSED;
    }
    close(signal_fd);
    return code;
}
