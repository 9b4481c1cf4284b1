/* SPDX-License-Identifier: Apache-2.0
 * The lifecycle of a node: settings, threads, and the end.
 *
 * Threads: control (all protocol state), dial (finds a master), populate (touches memory in advance), pin (registers
 * memory if that is slow), fetch (reads other nodes for COPY), and the transports' lanes (threads that serve data). The
 * caller's threads only start and stop the node and read figures. */
#include "node/priv.h"

#include "common/trust/creds.h"
#include "common/waits.h"
#include "transport/all/registry.h"
#include "transport/rdma/verbs/select.h"
#include "common/rlimits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ATTACHMENTS_DEFAULT 4096u
#define CPUS_A_LANE 8
#define SIZE_UNIT 4096u
#define PAGE_BYTES 4096 /* the only size of pages with which a node was tested */
#define WHY_MAX 512u
#define FILES_CLIENTS 512u /* the descriptors of 256 clients on this host: a connection and a pidfd for each */
#define SPARE 64u /* descriptors or mappings reserved for threads and listeners that start later */

static kvp_err_t
read_transports(kvp_node_t *node, const kvp_node_conf_t *conf)
{
    const bool has_wish = conf->rdma_device != NULL || conf->rdma_gid_index != NULL;
    const char *needed = conf->needed != NULL ? conf->needed : conf->transports;
    char why[WHY_MAX] = "";
    kvp_err_t err = KVP_OK;

    if (has_wish && conf->transports != NULL && !kvp_is_listed(conf->transports, "rdma")) {
        kvp_log_error("node", "an RDMA device or GID index is given, and rdma is not among the transports: %s",
                      conf->transports);
        return KVP_INVALID;
    }
    if (has_wish) err = kvp_rdma_select(conf->rdma_device, conf->rdma_gid_index, why, sizeof why);
    if (err == KVP_OK && conf->transports != NULL)
        err = kvp_transports_parse(conf->transports, node->conf.ops, KVP_NODE_TPS_MAX, &node->conf.ops_n, why,
                                   sizeof why);
    else if (err == KVP_OK)
        err = kvp_transports_default(node->conf.ops, KVP_NODE_TPS_MAX, &node->conf.ops_n, why, sizeof why);
    if (err == KVP_OK && why[0] != '\0')
        kvp_log_write(kvp_rdma_has_adapter() ? KVP_LOG_INFO : KVP_LOG_DEBUG, "node",
                      "%s; clients use the other transports", why);
    for (size_t i = 0; i < node->conf.ops_n; i++)
        if (has_wish || (needed != NULL && kvp_is_listed(needed, node->conf.ops[i]->name)))
            node->conf.needed |= 1u << i;
    if (err == KVP_OK) return KVP_OK;
    kvp_log_error("node", "transports: %s", why);
    return KVP_INVALID;
}

static kvp_err_t
read_size(kvp_node_t *node, const kvp_node_conf_t *conf)
{
    uint64_t chunk = conf->chunk_bytes;

    node->conf.size_bytes = conf->memory_bytes / SIZE_UNIT * SIZE_UNIT;
    if (chunk == 0) chunk = kvp_node_chunk_default(node->conf.size_bytes);
    node->conf.chunk_bytes = chunk / SIZE_UNIT * SIZE_UNIT;
    if (node->conf.size_bytes < KVP_NODE_CHUNK_MIN || node->conf.chunk_bytes < KVP_NODE_CHUNK_MIN ||
        node->conf.chunk_bytes > KVP_NODE_CHUNK_MAX ||
        (node->conf.size_bytes - 1) / node->conf.chunk_bytes >= KVP_NODE_CHUNKS_MAX) {
        kvp_log_error("node",
                      "memory of %llu bytes in chunks of %llu: both at least 64 KiB, chunks at most 64 GiB, "
                      "65536 of them",
                      (unsigned long long)conf->memory_bytes, (unsigned long long)chunk);
        return KVP_INVALID;
    }
    return KVP_OK;
}

/* Checks the limits of descriptors and mappings. Called before looking for a master, so that a node that cannot map
 * its memory fails at once. */
static kvp_err_t
check_limits(const kvp_node_t *node)
{
    uint64_t chunks = (node->conf.size_bytes - 1) / node->conf.chunk_bytes + 1, takes = chunks * KVP_CHUNK_FILES;
    kvp_limit_t files = kvp_limit_files(), maps = kvp_limit_maps();

    /* files.has includes the file descriptors of the embedding program */
    if (files.max < files.has + takes + FILES_CLIENTS) {
        kvp_limit_raise_files();
        files = kvp_limit_files();
    }
    if (maps.max < maps.has + takes + SPARE) {
        kvp_log_error(
            "node",
            "%llu chunks take %llu mappings, the rest of the process %llu, and vm.max_map_count is %llu: sysctl "
            "-w vm.max_map_count=%llu, or longer chunks (--chunk-bytes)",
            (unsigned long long)chunks, (unsigned long long)takes, (unsigned long long)(maps.has + SPARE),
            (unsigned long long)maps.max, (unsigned long long)(2 * (maps.has + takes + SPARE)));
        return KVP_SYS;
    }
    if (files.max >= files.has + takes + FILES_CLIENTS) return KVP_OK;
    kvp_log_write(
        files.max < files.has + takes + SPARE ? KVP_LOG_ERROR : KVP_LOG_WARN, "node",
        "%llu chunks take %llu descriptors, the rest of the process and 256 clients %llu, and it may have %llu: "
        "ulimit -Hn %llu (LimitNOFILE of the service), or longer chunks (--chunk-bytes)",
        (unsigned long long)chunks, (unsigned long long)takes, (unsigned long long)(files.has + FILES_CLIENTS),
        (unsigned long long)files.max, (unsigned long long)(files.has + takes + FILES_CLIENTS));
    return files.max < files.has + takes + SPARE ? KVP_SYS : KVP_OK;
}

static kvp_err_t
check_pages(void)
{
    long bytes = sysconf(_SC_PAGESIZE);

    if (bytes == PAGE_BYTES) return KVP_OK;
    kvp_log_error("node",
                  "the pages of this machine have %ld bytes, and a node needs pages of %d: boot a kernel with 4 KiB "
                  "pages, or let this host use the memory of other hosts only",
                  bytes, PAGE_BYTES);
    return KVP_SYS;
}

static uint32_t
default_lanes(void)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);

    return (uint32_t)kvp_min_u64(kvp_max_u64((uint64_t)(cpus < 0 ? 0 : cpus) / CPUS_A_LANE, 1), KVP_NODE_LANES_MAX);
}

static kvp_err_t
read_conf(kvp_node_t *node, const kvp_node_conf_t *conf, kvp_hostport_t *listen_out)
{
    kvp_err_t err = check_pages();

    if (err == KVP_OK) err = read_transports(node, conf);
    if (err == KVP_OK) err = read_size(node, conf);
    if (err == KVP_OK) err = check_limits(node);
    if (err != KVP_OK) return err;
    err = kvp_node_dial_init(&node->dial, conf->masters == NULL ? "" : conf->masters, conf->cluster);
    if (err == KVP_INVALID)
        kvp_log_error("node",
                      "masters: HOST:PORT[,HOST:PORT] is expected, or etcd://HOST:PORT[;HOST:PORT] and a cluster");
    if (err != KVP_OK) return err;
    if (kvp_parse_hostport(conf->listen == NULL ? "127.0.0.1:0" : conf->listen, listen_out) != KVP_OK) {
        kvp_log_error("node", "listen: HOST:PORT is expected");
        return KVP_INVALID;
    }
    if ((conf->name != NULL && (conf->name[0] == '\0' || strlen(conf->name) > KVP_NAME_MAX)) ||
        (conf->host_id != NULL && (conf->host_id[0] == '\0' || strlen(conf->host_id) > KVP_HOST_ID_MAX))) {
        kvp_log_error("node", "name and host id have from 1 to 128 bytes");
        return KVP_INVALID;
    }
    node->conf.lanes = conf->lanes == 0 ? default_lanes() : (uint32_t)kvp_min_u64(conf->lanes, KVP_NODE_LANES_MAX);
    node->conf.max_attachments = conf->max_attachments == 0 ? ATTACHMENTS_DEFAULT : conf->max_attachments;
    if (conf->host_id == NULL)
        kvp_host_id(node->conf.host_id);
    else
        snprintf(node->conf.host_id, sizeof node->conf.host_id, "%s", conf->host_id);
    return KVP_OK;
}

/* Sets the node's name. The default is the name in the certificate. Without a certificate the default contains the
 * port, so that two nodes of a host have different names. */
static void
set_name(kvp_node_t *node, const char *name)
{
    char host[KVP_NAME_MAX - 8] = "node";

    if (name == NULL && node->serve.handshakes != NULL) {
        const kvp_identity_t *who = kvp_handshakes_who(node->serve.handshakes);

        name = who->role == KVP_IS_ENGINE ? who->node : who->name;
    }
    if (name != NULL) {
        snprintf(node->conf.name, sizeof node->conf.name, "%s", name);
        return;
    }
    if (gethostname(host, sizeof host - 1) != 0) kvp_log_debug("node", "no host name: %m");
    snprintf(node->conf.name, sizeof node->conf.name, "%s-%u", host, (unsigned)node->conf.listen.port);
}

static kvp_node_t *
node_create(void)
{
    kvp_node_t *node = calloc(1, sizeof *node);

    if (node == NULL) return NULL;
    node->epoch = kvp_random_u64();
    kvp_node_times_init(&node->times);
    node->events.epoll = KVP_EPOLL_EMPTY;
    node->serve.tcp.ev.fd = node->serve.local.ev.fd = -1;
    node->keep.link.fd = node->keep.book.mem.fd = -1;
    node->keep.noise = (kvp_log_limit_t){.burst = 3, .interval_ms = 10000};
    node->tiering.noise = (kvp_log_limit_t){.burst = 5, .interval_ms = 1000};
    node->link.noise = (kvp_log_limit_t){.burst = 5, .interval_ms = 10000};
    node->dial.noise = (kvp_log_limit_t){.burst = 3, .interval_ms = 10000};
    kvp_list_init(&node->serve.fresh);
    kvp_list_init(&node->serve.settled);
    kvp_list_init(&node->serve.procs);
    kvp_list_init(&node->link.fences);
    kvp_list_init(&node->events.deferred);
    kvp_list_init(&node->tiering.orders);
    kvp_list_init(&node->copying.orders);
    kvp_list_init(&node->copying.storing);
    kvp_list_init(&node->copying.wanted);
    kvp_list_init(&node->copying.read);
    node->copying.noise = (kvp_log_limit_t){.burst = 3, .interval_ms = 10000};
    pthread_mutex_init(&node->copying.lock, NULL);
    kvp_cond_init(&node->copying.changed);
    kvp_framed_init(&node->link.conn);
    pthread_mutex_init(&node->shared.lock, NULL);
    kvp_cond_init(&node->shared.changed);
    return node;
}

static void
node_destroy(kvp_node_t *node)
{
    kvp_node_dial_stop(&node->dial);
    if (node->core != NULL) {
        kvp_node_link_close(node);
        kvp_node_tiering_close(node);
        kvp_node_copying_close(node);
        kvp_node_keep_close(node);
        kvp_node_drop_memory(node);
        kvp_node_serve_close(node);
    }
    kvp_node_populate_stop(&node->populate);
    kvp_node_free_deferred(node);
    kvp_node_core_destroy(node->core);
    kvp_epoll_close(&node->events.epoll);
    pthread_cond_destroy(&node->shared.changed);
    pthread_mutex_destroy(&node->shared.lock);
    free(node);
}

static kvp_err_t
open_loop(kvp_node_t *node)
{
    kvp_node_core_conf_t conf = {.words = &kvp_node_mem_words,
                                 .words_arg = &node->mem,
                                 .max_attachments = node->conf.max_attachments,
                                 .secret = kvp_random_u64()};

    node->core = kvp_node_core_create(&conf);
    if (node->core == NULL) return KVP_NOMEM;
    if (kvp_epoll_open(&node->events.epoll) != KVP_OK) {
        kvp_log_error("node", "cannot make the event loop: %m");
        return KVP_SYS;
    }
    return KVP_OK;
}

static kvp_err_t
start_threads(kvp_node_t *node, const kvp_node_conf_t *conf)
{
    kvp_err_t err = kvp_node_populate_start(&node->populate, conf->is_lazy);

    snprintf(node->dial.name, sizeof node->dial.name, "%s", node->conf.name);
    snprintf(node->dial.host_id, sizeof node->dial.host_id, "%s", node->conf.host_id);
    node->dial.is_loopback = kvp_hostport_is_loopback(&node->conf.listen);
    node->dial.wake_fd = node->events.epoll.wake_fd;
    if (err == KVP_OK) err = kvp_node_keep_open(node, conf);
    if (err == KVP_OK && node->mem == NULL) err = kvp_node_check_fit(node, node->keep.held_bytes);
    if (err == KVP_OK) err = kvp_node_dial_start(&node->dial);
    if (err == KVP_OK) err = kvp_thread_start(&node->thread, "kvp-node", kvp_node_loop, node);
    node->has_thread = err == KVP_OK;
    return err;
}

kvp_err_t
kvp_node_open(const kvp_node_conf_t *conf, kvp_node_t **node_out)
{
    kvp_node_t *node = node_create();
    kvp_creds_t files = {.tls_cert = NULL};
    kvp_hostport_t at;
    kvp_err_t err;

    if (node == NULL) return KVP_NOMEM;
    err = read_conf(node, conf, &at);
    if (err != KVP_OK) goto fail;
    err = open_loop(node);
    if (err != KVP_OK) goto fail;
    err = kvp_may_listen("--listen", &at, kvp_creds_tls(&files) && files.tls_cert != NULL, "--tls-cert (kvpool cert)",
                         conf->is_insecure);
    if (err == KVP_OK) err = kvp_node_serve_open(node, &at);
    if (err != KVP_OK) goto fail;
    set_name(node, conf->name);
    err = kvp_node_copying_open(node, conf);
    if (err != KVP_OK) goto fail;
    err = kvp_node_tiering_open(node, conf);
    if (err != KVP_OK) goto fail;
    kvp_format_hostport(&node->conf.listen, node->shared.info.addr);
    if (node->serve.handshakes == NULL && !kvp_hostport_is_loopback(&node->conf.listen))
        kvp_log_warn(
            "node",
            "clients are not authenticated: every host that can connect here can read and write this memory listen=%s",
            node->shared.info.addr);
    snprintf(node->shared.info.protection, sizeof node->shared.info.protection, "control %s, http %s, data %s",
             kvp_protection_of(&at, node->serve.handshakes != NULL ? "tls" : NULL),
             conf->http_protection != NULL ? conf->http_protection : "closed", kvp_protection_of(&at, NULL));
    memcpy(node->shared.info.unix_path, node->conf.unix_path, sizeof node->shared.info.unix_path);
    node->shared.info.size_bytes = node->conf.size_bytes;
    err = start_threads(node, conf);
    if (err != KVP_OK) goto fail;
    *node_out = node;
    return KVP_OK;
fail:
    node_destroy(node);
    return err;
}

kvp_err_t
kvp_node_start(const kvp_node_conf_t *conf, uint64_t deadline_ns, kvp_node_t **node_out)
{
    kvp_node_t *node;
    kvp_err_t err = kvp_node_open(conf, &node);

    if (err != KVP_OK) return err;
    err = kvp_node_wait(node, deadline_ns);
    if (err != KVP_OK) {
        char why[KVP_NODE_REFUSAL_MAX];

        kvp_node_dial_refusal(&node->dial, why);
        /* the refusal is logged again in the caller's thread, whose log may be diverted (kvp_log_divert) */
        if (why[0] != '\0') kvp_log_error("node", "%s", why);
        kvp_node_stop(node, 0);
        return err;
    }
    *node_out = node;
    return KVP_OK;
}

void
kvp_node_stop(kvp_node_t *node, uint64_t deadline_ns)
{
    kvp_node_ask_stop(node, deadline_ns);
    pthread_join(node->thread, NULL);
    kvp_node_leave_end(node);
    node_destroy(node);
}
