/* SPDX-License-Identifier: Apache-2.0
 * Turns facts into findings. Each rule gives the fault, its severity and its fix. A fault that does no harm on
 * this host is a warning; a fault that keeps a node from being reached as configured is an error. */
#include "tools/doctor/facts.h"

#include "common/err.h"
#include "common/parse.h"
#include "proto/segfmt.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MEMLOCK_LOW (64ull << 20) /* locked memory that a client needs for its own buffers */
#define FILES_LOW 256u
#define FILES_FEW 1024u
#define CLIENTS_FILES 512u /* descriptors that a node needs for 256 clients */
/* MTU that the doctor advises for the interface of a RoCE device: holds packets of 4096 bytes with their headers */
#define ETHERNET_MTU_FULL 4200u
#define MTU_FULL 4096u
#define LOW_SHARE 64u /* a warning if less than 1/LOW_SHARE of the memory is left */

typedef struct {
    const kvp_doctor_facts_t *f;
    kvp_doctor_finding_t *list;
    size_t cap, n;
} judge_t;

/* begin_finding adds a finding, which is complete when the next one begins. It returns NULL if the list is full. */
static kvp_doctor_finding_t *
begin_finding(judge_t *j, kvp_doctor_severity_t severity, const char *code)
{
    kvp_doctor_finding_t *it;

    if (j->n == j->cap) return NULL;
    it = &j->list[j->n++];
    memset(it, 0, sizeof *it);
    it->severity = severity;
    it->code = code;
    return it;
}

static kvp_doctor_finding_t *say_finding(kvp_doctor_finding_t *it, const char *fix, const char *fmt, ...)
    KVP_PRINTF(3, 4);

static kvp_doctor_finding_t *
say_finding(kvp_doctor_finding_t *it, const char *fix, const char *fmt, ...)
{
    va_list ap;

    if (it == NULL) return NULL;
    va_start(ap, fmt);
    vsnprintf(it->what, sizeof it->what, fmt, ap);
    va_end(ap);
    snprintf(it->fix, sizeof it->fix, "%s", fix);
    return it;
}

static KVP_PRINTF(2, 3) void set_fix(kvp_doctor_finding_t *it, const char *fmt, ...)
{
    va_list ap;

    if (it == NULL) return;
    va_start(ap, fmt);
    vsnprintf(it->fix, sizeof it->fix, fmt, ap);
    va_end(ap);
}

static const kvp_doctor_transport_t *
find_transport(const judge_t *j, const char *name)
{
    for (size_t i = 0; i < KVP_DOCTOR_TRANSPORTS; i++)
        if (strcmp(j->f->transports[i].name, name) == 0) return &j->f->transports[i];
    return NULL;
}

static bool
has_rdma(const judge_t *j)
{
    const kvp_doctor_transport_t *t = find_transport(j, "rdma");

    return t != NULL && t->is_usable;
}

/* ---- findings about this machine */
static bool
is_active(const kvp_doctor_port_t *port)
{
    return strcmp(port->state, "ACTIVE") == 0;
}

/* Returns the interface's name for a command; a placeholder if the name is unknown. */
static const char *
netdev_of(const kvp_doctor_port_t *port)
{
    return port->netdev[0] == '\0' ? "IFNAME" : port->netdev;
}

static void
judge_port(judge_t *j, const kvp_doctor_port_t *port, bool is_needed)
{
    kvp_doctor_finding_t *it;

    if (!port->has_verbs)
        say_finding(begin_finding(j, KVP_DOCTOR_ERROR, "no_verbs"), "modprobe ib_uverbs",
                    "%s is there, but no program can use it: its verbs device is missing", port->device);
    else if (!port->may_open)
        say_finding(begin_finding(j, KVP_DOCTOR_ERROR, "no_permission"),
                    "give this user read and write access to /dev/infiniband (a container: --device=/dev/infiniband)",
                    "%s may not be opened", port->device);
    if (!is_active(port)) {
        it = begin_finding(j, is_needed ? KVP_DOCTOR_ERROR : KVP_DOCTOR_WARNING, "port_down");
        say_finding(it, "", "%s port %u is %s", port->device, port->port, port->state);
        if (strcmp(port->link_layer, "InfiniBand") == 0)
            set_fix(it, "check the cable, and that a subnet manager runs (opensm)");
        else
            set_fix(it, "ip link set %s up; if it is up, check the cable", netdev_of(port));
        return;
    }
    if (!port->is_used) return;
    if (strncmp(port->address, "fe80:", 5) == 0) {
        it = begin_finding(j, KVP_DOCTOR_WARNING, "link_local");
        say_finding(it, "", "%s port %u has a link-local address only, which other networks cannot reach", port->device,
                    port->port);
        set_fix(it, "ip address add ADDRESS/LENGTH dev %s", netdev_of(port));
    }
    if (strcmp(port->link_layer, "Ethernet") == 0 && port->mtu_bytes < MTU_FULL) {
        it = begin_finding(j, KVP_DOCTOR_INFO, "small_mtu");
        say_finding(it, "", "%s port %u sends packets of %u bytes, as its interface's MTU of %u allows", port->device,
                    port->port, port->mtu_bytes, port->netdev_mtu_bytes);
        set_fix(it, "ip link set %s mtu %u, at every host and switch of that network", netdev_of(port),
                ETHERNET_MTU_FULL);
    }
}

/* Reports ports with different MTUs: ports that share transfers should send packets of one size. */
static void
judge_mtus(judge_t *j)
{
    const kvp_doctor_port_t *first = NULL;

    for (size_t i = 0; i < j->f->ports_n; i++) {
        const kvp_doctor_port_t *port = &j->f->ports[i];

        if (!port->is_used) continue;
        if (first == NULL) first = port;
        if (port->mtu_bytes == first->mtu_bytes) continue;
        say_finding(begin_finding(j, KVP_DOCTOR_WARNING, "mtu_differs"),
                    "set the same MTU at all interfaces: ip link set IFNAME mtu 4200",
                    "%s port %u sends packets of %u bytes, %s port %u of %u", first->device, first->port,
                    first->mtu_bytes, port->device, port->port, port->mtu_bytes);
        return;
    }
}

static void
judge_ports(judge_t *j)
{
    size_t active_n = 0;

    for (size_t i = 0; i < j->f->ports_n; i++)
        active_n += is_active(&j->f->ports[i]);
    for (size_t i = 0; i < j->f->ports_n; i++)
        judge_port(j, &j->f->ports[i], active_n == 0);
    if (j->f->ports_n > 0 && !j->f->has_rdma_cm)
        say_finding(begin_finding(j, KVP_DOCTOR_ERROR, "no_rdma_cm"),
                    "modprobe rdma_ucm (a container: --device=/dev/infiniband)",
                    "/dev/infiniband/rdma_cm is missing or may not be opened: no connection can be made");
    judge_mtus(j);
}

static void
judge_transports(judge_t *j)
{
    for (size_t i = 0; i < KVP_DOCTOR_TRANSPORTS; i++) {
        const kvp_doctor_transport_t *t = &j->f->transports[i];

        if (t->is_usable || t->is_out) continue;
        if (t->is_named)
            say_finding(begin_finding(j, KVP_DOCTOR_ERROR, "transport_named"),
                        "mend it, or leave the transport out of --transports or KVPOOL_TRANSPORTS", "%s", t->why);
        else if (t->is_wished)
            say_finding(begin_finding(j, KVP_DOCTOR_ERROR, "device_named"),
                        "mend it, or unset KVPOOL_RDMA_DEVICE and KVPOOL_RDMA_GID_INDEX; until then no pool opens",
                        "%s", t->why);
        else if (j->f->ports_n == 0)
            say_finding(begin_finding(j, KVP_DOCTOR_INFO, "no_rdma"), "", "%s; tcp is used between hosts", t->why);
        else
            say_finding(begin_finding(j, KVP_DOCTOR_ERROR, "rdma_unusable"),
                        "see the other findings; without it tcp is used between hosts", "%s", t->why);
    }
}

/* Returns the bytes that a process may have to lock: the largest node on this host, at least MEMLOCK_LOW. */
static uint64_t
locked_bytes(const judge_t *j)
{
    uint64_t most = MEMLOCK_LOW;

    for (size_t i = 0; i < j->f->nodes_n; i++)
        if (j->f->nodes[i].is_here) most = kvp_max_u64(most, j->f->nodes[i].size_bytes);
    return most;
}

static void
judge_limits(judge_t *j)
{
    const kvp_doctor_facts_t *f = j->f;
    uint64_t needs = locked_bytes(j);

    if (f->memlock_bytes < needs)
        say_finding(
            begin_finding(j, has_rdma(j) ? KVP_DOCTOR_ERROR : KVP_DOCTOR_INFO, "memlock"),
            "ulimit -l unlimited; LimitMEMLOCK=infinity in the service's unit; --ulimit memlock=-1 for a container",
            "this process may lock %llu KiB of memory; rdma locks what it registers, at least %llu MiB%s",
            (unsigned long long)(f->memlock_bytes >> 10), (unsigned long long)(needs >> 20),
            has_rdma(j) ? "" : " (rdma is not used here)");
    if (f->open_files < FILES_FEW)
        say_finding(begin_finding(j, f->open_files < FILES_LOW ? KVP_DOCTOR_ERROR : KVP_DOCTOR_WARNING, "open_files"),
                    "ulimit -n 65536; LimitNOFILE=65536 in the service's unit",
                    "this process may open %llu files; a client needs some for each node",
                    (unsigned long long)f->open_files);
    if (needs > MEMLOCK_LOW && (strcmp(f->shmem_huge, "never") == 0 || strcmp(f->shmem_huge, "deny") == 0))
        say_finding(
            begin_finding(j, KVP_DOCTOR_INFO, "huge_pages"),
            "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
            "shared memory gets no huge pages (%s), so that this host's nodes start and first copies run slower",
            f->shmem_huge);
}

/* ---- findings about the pool */
static void
judge_no_pool(judge_t *j)
{
    const kvp_doctor_facts_t *f = j->f;
    const char *why = f->pool_why[0] != '\0' ? f->pool_why : kvp_err_text(f->pool_err);
    const bool is_silent = strstr(why, "it is connected and does not answer") != NULL;

    if (strstr(why, "no master leads") != NULL)
        say_finding(begin_finding(j, KVP_DOCTOR_ERROR, "no_leader"),
                    "make sure that a majority of etcd answers (`etcdctl endpoint health`): a master that does not "
                    "reach etcd does not lead; its log and /health name the cause",
                    "%s (%s)", why, kvp_err_name(f->pool_err));
    else
        say_finding(
            begin_finding(j, KVP_DOCTOR_ERROR, "pool_unreachable"),
            is_silent
                ? "on the master's host, `ps -o pid,stat,cmd -C kvpool-master` shows whether the process is stopped "
                  "(T): `kill -CONT PID` continues it; else end it by `kill -9 PID`, and start it again: the log keeps "
                  "the pool"
                : "start kvpool-master there (on this host alone: `kvpool up`), or name the right master: --master "
                  "HOST:PORT or KVPOOL_MASTER; with several masters name all, because a standby does not serve",
            "%s (%s)", why, kvp_err_name(f->pool_err));
}

/* Reports what daemons.c found, and the causes of a degraded pool that the master names, except those that follow from
 * the lists of nodes and tiers. */
static void
judge_wrong(judge_t *j)
{
    static const struct {
        const char *code, *fix;
    } fixes[] = {
        /* The first two are errors, because the user named a daemon that does not answer there. */
        {"http_unreachable", "start the daemon with this --http (its ready line names the address), or open the port"},
        {"port_taken", "name the --http of a daemon, or end the other program: `ss -ltnp` lists programs and ports"},
        {"disk_low", "free space there, or give the daemon another directory (--data-dir, --ssd)"},
        {"versions", "run one version, masters first"},
        {"clock", "run a time service, such as chrony, on all hosts"},
        {"engine_unreachable", "start the engine, open its port, or remove it by POST /unregister"},
        {"etcd_away", "make sure that a majority of etcd answers: `etcdctl endpoint health`"},
        {"master_missing", "if it does not run, start it; if it runs, it hangs or does not reach etcd: read its log"},
        {"master_apart", "make sure that it reaches the leader's address, and read its log"},
        {"master_lagging", "check the network between them, and the standby's disk"},
        {"no_standby", "start kvpool-master on another host with the same --etcd and --cluster"},
        {"node_given_up", "start the node again, if it should be in the pool"},
        {"device_stalled", "see the node's log, and its disks"},
        {"ssd_behind",
         "more or faster SSDs (a node takes several --ssd), a larger --ssd-writes, or --ssd-admission used"},
        {"ssd_damaged", "test the SSD (smartctl, the node's log), and replace it if this happens again"},
        {"loads_fail", "check the logs and disks of nodes with --ssd, and that not all their memory is pinned or held"},
    };

    for (size_t i = 0; i < j->f->wrong_n; i++)
        for (size_t k = 0; k < KVP_ARRAY_LEN(fixes); k++)
            if (strcmp(fixes[k].code, j->f->wrong[i].code) == 0)
                say_finding(begin_finding(j, k < 2 ? KVP_DOCTOR_ERROR : KVP_DOCTOR_WARNING, fixes[k].code),
                            fixes[k].fix, "%s", j->f->wrong[i].text);
}

static void
judge_master(judge_t *j)
{
    const kvp_doctor_facts_t *f = j->f;

    if (f->pool_err != KVPOOL_OK) {
        judge_no_pool(j);
        return;
    }
    if (strcmp(f->pool_software, f->own_software) != 0)
        say_finding(begin_finding(j, KVP_DOCTOR_WARNING, "versions"), "run one version, masters first",
                    "the master is of version %s, this client of %s", f->pool_software, f->own_software);
    if (f->is_log_refusing)
        say_finding(
            begin_finding(j, KVP_DOCTOR_ERROR, "log_failed"),
            "free space on the disk of the master's --data-dir, or repair it; the master's /health names the error",
            "the master cannot write its log, and refuses puts and removals");
    if (f->nodes_n == 0)
        say_finding(begin_finding(j, KVP_DOCTOR_ERROR, "no_nodes"), "start kvpool-node on the hosts that give memory",
                    "the pool has no node");
    if (f->has_more_nodes)
        say_finding(begin_finding(j, KVP_DOCTOR_INFO, "more_nodes"), "", "only the first %u nodes were looked at",
                    KVP_DOCTOR_NODES_MAX);
}

static bool
has_tls(const char *protection)
{
    return strncmp(protection, "control tls", strlen("control tls")) == 0;
}

/* Sets the suggested fix of a finding: a probe of the node by the transport `name` failed with err. */
static void
fix_probe(kvp_doctor_finding_t *it, const kvp_doctor_facts_t *f, const kvp_doctor_node_t *node, const char *name,
          int err)
{
    if (strcmp(name, "shm") == 0)
        set_fix(it, "make sure that the node runs on this host, under this user or a trusted one (KVPOOL_TRUST_UID), "
                    "with its socket in this user's directory of sockets (KVPOOL_RUNTIME_DIR), and read its log");
    else if (strcmp(name, "rdma") == 0 && err == KVPOOL_NOMEM)
        set_fix(it, "raise the memory lock (ulimit -l unlimited): memory that moves by rdma is locked");
    else if (strcmp(name, "rdma") == 0)
        set_fix(it,
                "make sure that this host's devices reach %s, an address of the node's device (ping it from their "
                "interfaces), and that both interfaces have the same MTU: compare `kvpool doctor` there; choose other "
                "devices by --rdma-device and KVPOOL_RDMA_DEVICE",
                node->addr);
    else if (has_tls(f->protection) && !has_tls(node->protection))
        set_fix(it,
                "start the node with a certificate (`kvpool cert node %s`; --tls-ca, --tls-cert, --tls-key): the "
                "master has TLS and the node has none",
                node->name);
    else
        set_fix(it,
                "make sure that %s can be reached from here (firewall, routes, --listen of the node) and that the node "
                "runs",
                node->addr);
}

/* Returns whether the error of a probe is one of the network path to the node, and not of the request. */
static bool
is_of_the_way(int err)
{
    return err == KVPOOL_NODE_LOST || err == KVPOOL_DEADLINE || err == KVPOOL_DISCONNECTED || err == KVPOOL_UNREACHABLE;
}

/* Returns the name of a lost node; NULL = no node is lost. While a node is lost, the master may place no probe. */
static const char *
name_away(const kvp_doctor_facts_t *f)
{
    for (size_t i = 0; i < f->nodes_n; i++)
        if (strcmp(f->nodes[i].state, "lost") == 0) return f->nodes[i].name;
    return NULL;
}

static void
judge_probe(judge_t *j, const kvp_doctor_node_t *node, const char *name, const kvp_doctor_probe_t *probe)
{
    const int err = probe->err != KVPOOL_OK ? probe->err : probe->get_err;
    kvp_doctor_finding_t *it;

    if (probe->is_left && err != KVPOOL_DENIED)
        say_finding(begin_finding(j, KVP_DOCTOR_WARNING, "probe_left"), "kvpool rm --force --regex '^kvpool-doctor/'",
                    "node %s: the probe by %s could not be removed", node->name, name);
    if (probe->is_wrong) {
        say_finding(
            begin_finding(j, KVP_DOCTOR_ERROR, "wrong_bytes"), "take that node out and test its memory and its network",
            "node %s: %u bytes that were put by %s came back changed", node->name, KVP_DOCTOR_PROBE_BYTES, name);
        return;
    }
    if (err == KVPOOL_OK) return;
    if (err == KVPOOL_RETRY_AFTER && name_away(j->f) != NULL) {
        say_finding(begin_finding(j, KVP_DOCTOR_INFO, "not_probed"), "ask again when all nodes are up",
                    "node %s was not probed by %s: node %s is away", node->name, name, name_away(j->f));
        return;
    }
    if (err == KVPOOL_RETRY_AFTER) { /* the master places no object on a node that does not answer */
        it = begin_finding(j, KVP_DOCTOR_ERROR, "no_place");
        say_finding(it,
                    "make sure that kvpool-node runs and answers there, and read its log; if all its memory is held, "
                    "ask again later",
                    "node %s at %s gave no place for a probe by %s in time: %s", node->name, node->addr, name,
                    probe->detail);
        return;
    }
    if (err == KVPOOL_NO_SPACE) { /* a full pool is normal */
        say_finding(begin_finding(j, KVP_DOCTOR_INFO, "not_probed"),
                    "nothing is wrong for this reason: `kvpool stat` shows how much memory is free, and for which "
                    "tenants; a probe of the tenant with the most memory (--tenant NAME) may find room",
                    "node %s was not probed by %s: %s", node->name, name, probe->detail);
        return;
    }
    if (err == KVPOOL_DENIED) {
        say_finding(begin_finding(j, KVP_DOCTOR_INFO, "not_probed"),
                    "a probe puts and gets an object: give the token or the certificate of a writer or an admin "
                    "(KVPOOL_TOKEN_FILE, KVPOOL_TLS_CERT)",
                    "node %s was not probed by %s: this identity may not put objects", node->name, name);
        return;
    }
    if (probe->small_err == KVPOOL_OK && is_of_the_way(err)) {
        it = begin_finding(j, KVP_DOCTOR_ERROR, "mtu");
        say_finding(it, "", "node %s: %u bytes go through by %s, %u do not: packets of full size are lost on the way",
                    node->name, KVP_DOCTOR_SMALL_BYTES, name, KVP_DOCTOR_PROBE_BYTES);
        set_fix(it, "set one MTU at both hosts and every switch between: ip link set IFNAME mtu 4200");
        return;
    }
    it = begin_finding(j, KVP_DOCTOR_ERROR, "node_unreachable");
    say_finding(it, "", "node %s at %s is not reached by %s: %s of %u bytes: %s (%s)", node->name, node->addr, name,
                probe->err != KVPOOL_OK ? "a put" : "a get", KVP_DOCTOR_PROBE_BYTES, kvp_err_text(err),
                kvp_err_name(err));
    fix_probe(it, j->f, node, name, err);
}

/* Returns whether a pool can be opened as configured. If not, judge_transports reports this once, instead of once
 * for each node. */
static bool
may_open_pool(const judge_t *j)
{
    for (size_t i = 0; i < KVP_DOCTOR_TRANSPORTS; i++)
        if (kvp_doctor_is_refused(&j->f->transports[i])) return false;
    return true;
}

/* Reports a node that no transport reaches, or that offers rdma but is reached by tcp. */
static void
judge_way(judge_t *j, const kvp_doctor_node_t *node)
{
    const kvp_doctor_transport_t *rdma = find_transport(j, "rdma");
    kvp_doctor_finding_t *it;

    if (!may_open_pool(j)) return;
    if (strcmp(node->transport, "none") == 0) {
        it = begin_finding(j, KVP_DOCTOR_ERROR, "no_way");
        say_finding(it, "", "node %s offers %s, and none of these transports reaches it from here", node->name,
                    node->offers);
        set_fix(
            it,
            "start the node with --transports that this machine does not leave out, or enable here one that it offers");
    } else if (rdma != NULL && strcmp(node->transport, "tcp") == 0 && kvp_is_listed(node->offers, "rdma") &&
               !rdma->is_usable) {
        say_finding(begin_finding(j, KVP_DOCTOR_WARNING, "rdma_unused"), "mend the causes that are named above",
                    "node %s offers rdma, and is reached by tcp: %s", node->name, rdma->why);
    }
}

/* Reports limits that are too low for the memory of this host's nodes: a node passes each chunk as a file
 * descriptor, and a client maps each chunk. */
static void
judge_chunks(judge_t *j)
{
    uint64_t maps = 0;

    for (size_t i = 0; i < j->f->nodes_n; i++) {
        const kvp_doctor_node_t *node = &j->f->nodes[i];
        uint64_t chunks, files;

        if (!node->is_here || node->chunk_bytes == 0) continue;
        chunks = (node->size_bytes + node->chunk_bytes - 1) / node->chunk_bytes;
        files = chunks * KVP_CHUNK_FILES + CLIENTS_FILES;
        maps += 2 * KVP_CHUNK_FILES * chunks;
        if (files <= j->f->open_files_max) continue;
        set_fix(say_finding(
                    begin_finding(j, KVP_DOCTOR_WARNING, "node_files"), "",
                    "node %s takes %llu open files for its %llu chunks and %u clients; a process of this user may have "
                    "%llu",
                    node->name, (unsigned long long)files, (unsigned long long)chunks, CLIENTS_FILES / 2,
                    (unsigned long long)j->f->open_files_max),
                "ulimit -Hn %llu; LimitNOFILE=%llu in the service's unit; or a longer --chunk-bytes",
                (unsigned long long)files, (unsigned long long)files);
    }
    if (maps <= j->f->mappings_max) return;
    set_fix(say_finding(begin_finding(j, KVP_DOCTOR_ERROR, "mappings"), "",
                        "a client may map the memory of this host's nodes in %llu pieces, and vm.max_map_count is %llu",
                        (unsigned long long)maps, (unsigned long long)j->f->mappings_max),
            "sysctl -w vm.max_map_count=%llu; or a longer --chunk-bytes of the nodes", (unsigned long long)(2 * maps));
}

/* Reports if this host's nodes together have more memory than the machine or its control group, or else if little
 * memory is left. Nodes populate their memory in the background, so each may start though all do not fit together. */
static void
judge_memory(judge_t *j)
{
    const kvp_ram_t *ram = &j->f->ram;
    char given[KVP_MIB_TEXT_MAX], has[KVP_MIB_TEXT_MAX], left[KVP_MIB_TEXT_MAX];
    uint64_t bytes = 0;

    for (size_t i = 0; i < j->f->nodes_n; i++)
        if (j->f->nodes[i].is_here) bytes += j->f->nodes[i].size_bytes;
    kvp_format_mib(bytes, given);
    kvp_format_mib(ram->total_bytes, has);
    kvp_format_mib(ram->available_bytes, left);
    if (bytes > ram->total_bytes)
        say_finding(
            begin_finding(j, KVP_DOCTOR_ERROR, "node_memory"),
            "start them with less --memory, or raise the limit of the control group: else the kernel kills them",
            "the nodes of this host give %s, more memory than this machine or its control group has (%s)", given, has);
    else if (ram->available_bytes < ram->total_bytes / LOW_SHARE)
        say_finding(begin_finding(j, KVP_DOCTOR_WARNING, "memory_low"),
                    "end other programs that take memory, or start the node with less --memory: else the kernel kills "
                    "a process",
                    "%s has %s of memory left, of %s", ram->where, left, has);
}

/* Reports a node that has the host of an earlier node in its address, but another host id. */
static void
judge_host_id(judge_t *j, const kvp_doctor_node_t *node)
{
    const char *port = memrchr(node->addr, ':', strcspn(node->addr, ","));

    for (const kvp_doctor_node_t *it = j->f->nodes; it < node && port != NULL; it++) {
        if (strncmp(it->addr, node->addr, (size_t)(port - node->addr) + 1) != 0 ||
            strcmp(it->host_id, node->host_id) == 0)
            continue;
        say_finding(
            begin_finding(j, KVP_DOCTOR_WARNING, "host_ids"),
            "give nodes and clients of a host one host id (--host-id), or mount the host's /etc/machine-id into "
            "its containers",
            "nodes %s and %s are at one address and have different host ids: no program shares memory with both",
            it->name, node->name);
        return;
    }
}

static void
judge_node(judge_t *j, const kvp_doctor_node_t *node)
{
    if (strcmp(node->state, "lost") == 0 && node->is_drained) {
        set_fix(
            say_finding(begin_finding(j, KVP_DOCTOR_INFO, "node_drained"), "",
                        "node %s is away: it was drained, and no object is lost with it; for the drain %llu objects "
                        "of the pool were evicted, and %llu objects on its SSD cannot be read now",
                        node->name, (unsigned long long)node->drain_evicted, (unsigned long long)node->drain_ssd),
            "start it, then: kvpool node undrain %s", node->name);
        return;
    }
    if (strcmp(node->state, "draining") == 0) {
        set_fix(say_finding(begin_finding(j, KVP_DOCTOR_INFO, "node_draining"), "",
                            "node %s is being drained, and accepts no new objects%s%s", node->name,
                            node->drain_waits[0] != '\0' ? "; it waits: " : "", node->drain_waits),
                "kvpool node drain %s shows how far it is; kvpool node undrain %s ends it", node->name, node->name);
    } else if (strcmp(node->state, "up") != 0) {
        say_finding(begin_finding(j, KVP_DOCTOR_ERROR, "node_away"),
                    "start the node again, or wait until the master gives it up", "node %s at %s is %s", node->name,
                    node->addr, node->state);
        return;
    }
    judge_way(j, node);
    judge_host_id(j, node);
    for (size_t i = 0; i < KVP_DOCTOR_TRANSPORTS; i++)
        if (node->probes[i].was_made) judge_probe(j, node, j->f->transports[i].name, &node->probes[i]);
    for (size_t i = 0; i < j->f->ports_n; i++) {
        const kvp_doctor_port_t *port = &j->f->ports[i];

        if (!port->is_used || !node->is_here || port->max_registration_bytes >= node->chunk_bytes) continue;
        say_finding(begin_finding(j, KVP_DOCTOR_ERROR, "registration"), "start the node with a smaller --chunk-bytes",
                    "node %s has chunks of %llu MiB, and %s registers %llu MiB at most", node->name,
                    (unsigned long long)(node->chunk_bytes >> 20), port->device,
                    (unsigned long long)(port->max_registration_bytes >> 20));
    }
}

static void
judge_tier(judge_t *j, const kvp_doctor_node_t *tier)
{
    if (strcmp(tier->state, "up") != 0 && tier->objects == 0) return; /* nothing is lost with it */
    if (strcmp(tier->state, "up") != 0)
        say_finding(begin_finding(j, KVP_DOCTOR_WARNING, "ssd_away"),
                    "start its node again with the same --ssd; `kvpool rm` removes objects that will not come back",
                    "the SSD tier %s is %s: objects that are only there cannot be read", tier->name, tier->state);
    else if (tier->size_bytes <= 1)
        say_finding(begin_finding(j, KVP_DOCTOR_ERROR, "ssd_failed"), "see the node's log, and its disks",
                    "the SSD tier %s has no device that works", tier->name);
}

static void
judge_wheel(judge_t *j)
{
    static const char reinstall[] = "pip install --force-reinstall --no-deps kvpool";

    if (j->f->foreign_file[0] != '\0')
        set_fix(say_finding(begin_finding(j, KVP_DOCTOR_ERROR, "wheel_over_wheel"), "",
                            "%s is of Mooncake's wheel: programs that import mooncake may not use kvpool",
                            j->f->foreign_file),
                "pip uninstall mooncake-transfer-engine (or the name of its variant), then %s", reinstall);
    else if (j->f->is_wheel_torn)
        say_finding(begin_finding(j, KVP_DOCTOR_ERROR, "wheel_torn"), reinstall,
                    "files of the package mooncake are missing, as after the removal of Mooncake's wheel");
}

size_t
kvp_doctor_judge(const kvp_doctor_facts_t *facts, kvp_doctor_finding_t *findings_out, size_t cap)
{
    judge_t j = {.f = facts, .list = findings_out, .cap = cap};

    judge_transports(&j);
    judge_ports(&j);
    judge_limits(&j);
    judge_master(&j);
    judge_wrong(&j);
    judge_chunks(&j);
    judge_memory(&j);
    judge_wheel(&j);
    for (size_t i = 0; i < facts->nodes_n; i++)
        judge_node(&j, &facts->nodes[i]);
    for (size_t i = 0; i < facts->tiers_n; i++)
        judge_tier(&j, &facts->tiers[i]);
    return j.n;
}

const char *
kvp_doctor_severity_name(kvp_doctor_severity_t severity)
{
    static const char *const names[] = {"info", "warning", "error"};

    return names[severity];
}
