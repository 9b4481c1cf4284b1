/* SPDX-License-Identifier: Apache-2.0
 * From facts to findings: a machine and a pool where all is well, with one thing after another that is not. And facts
 * of a machine that is made of a tree like /sys. */
#include "tools/doctor/facts.h"

#include "common/err.h"
#include "tests/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHM, RDMA, TCP };

static kvp_doctor_facts_t facts;
static kvp_doctor_node_t nodes[2];
static kvp_doctor_finding_t findings[KVP_DOCTOR_FINDINGS_MAX];

/* Two ports, both used; a node on this host and one elsewhere, both reached. */
static int
all_is_well(void **state)
{
    static const char *const names[] = {"shm", "rdma", "tcp"};

    memset(&facts, 0, sizeof facts);
    memset(nodes, 0, sizeof nodes);
    facts.memlock_bytes = KVP_DOCTOR_NO_LIMIT;
    facts.open_files = facts.open_files_max = 65536;
    facts.mappings_max = 65530;
    facts.has_rdma_cm = true;
    facts.ports_n = facts.nodes_n = 2;
    facts.nodes = nodes;
    facts.ram = (kvp_ram_t){.total_bytes = 16ull << 30, .available_bytes = 8ull << 30, .where = "this machine"};
    strcpy(facts.shmem_huge, "advise");
    strcpy(facts.own_software, "1.0.0");
    strcpy(facts.pool_software, "1.0.0");
    strcpy(facts.master, "10.0.0.1:50051");
    for (size_t i = 0; i < KVP_DOCTOR_TRANSPORTS; i++) {
        strcpy(facts.transports[i].name, names[i]);
        facts.transports[i].is_usable = true;
    }
    for (unsigned i = 0; i < 2; i++) {
        kvp_doctor_port_t *port = &facts.ports[i];

        snprintf(port->device, sizeof port->device, "mlx5_%u", i);
        snprintf(port->netdev, sizeof port->netdev, "eth%u", i);
        snprintf(port->address, sizeof port->address, "10.1.%u.1", i);
        snprintf(nodes[i].name, sizeof nodes[i].name, "node-%u", i);
        strcpy(port->state, "ACTIVE");
        strcpy(port->link_layer, "Ethernet");
        port->port = 1;
        port->has_verbs = port->may_open = port->is_used = true;
        port->netdev_mtu_bytes = 9000;
        port->mtu_bytes = 4096;
        port->max_registration_bytes = UINT64_MAX;
        strcpy(nodes[i].state, "up");
        strcpy(nodes[i].offers, "shm,rdma,tcp");
        strcpy(nodes[i].addr, "10.1.0.9:7000");
        strcpy(nodes[i].transport, i == 0 ? "shm" : "rdma");
        nodes[i].size_bytes = 4ull << 30;
        nodes[i].chunk_bytes = 256ull << 20;
        nodes[i].is_here = i == 0;
        nodes[i].probes[SHM].was_made = i == 0;
        nodes[i].probes[RDMA].was_made = nodes[i].probes[TCP].was_made = true;
    }
    return 0;
}

/* There is one finding, of that kind, which names this and has a fix with that. */
static void
assert_finding(kvp_doctor_severity_t severity, const char *code, const char *says, const char *fix)
{
    const size_t n = kvp_doctor_judge(&facts, findings, KVP_ARRAY_LEN(findings));

    for (size_t i = 0; i < n; i++)
        if (n != 1) print_error("%s: %s\n", findings[i].code, findings[i].what);
    assert_int_equal(n, 1);
    assert_string_equal(findings[0].code, code);
    assert_int_equal(findings[0].severity, severity);
    if (strstr(findings[0].what, says) == NULL) fail_msg("\"%s\" does not say \"%s\"", findings[0].what, says);
    if (strstr(findings[0].fix, fix) == NULL) fail_msg("\"%s\" does not say \"%s\"", findings[0].fix, fix);
}

TEST_WITH(test_nothing_is_found_where_all_is_well, all_is_well, NULL)
{
    assert_int_equal(kvp_doctor_judge(&facts, findings, KVP_ARRAY_LEN(findings)), 0);
}

TEST_WITH(test_memory, all_is_well, NULL)
{
    facts.ram.total_bytes = 3ull << 30;
    assert_finding(KVP_DOCTOR_ERROR, "node_memory", "give 4096MiB, more memory than", "--memory");
    all_is_well(state);
    facts.ram.available_bytes = 100ull << 20;
    assert_finding(KVP_DOCTOR_WARNING, "memory_low", "this machine has 100MiB of memory left", "less --memory");
}

TEST_WITH(test_wheels, all_is_well, NULL)
{
    facts.is_wheel_torn = true;
    assert_finding(KVP_DOCTOR_ERROR, "wheel_torn", "of the package mooncake are missing", "--force-reinstall");
    snprintf(facts.foreign_file, sizeof facts.foreign_file, "/site/mooncake/store.so");
    assert_finding(KVP_DOCTOR_ERROR, "wheel_over_wheel", "/site/mooncake/store.so", "pip uninstall");
}

TEST_WITH(test_ports, all_is_well, NULL)
{
    kvp_doctor_port_t *port = &facts.ports[1];

    strcpy(port->state, "DOWN");
    port->is_used = false;
    assert_finding(KVP_DOCTOR_WARNING, "port_down", "mlx5_1 port 1 is DOWN", "ip link set eth1 up");
    strcpy(port->link_layer, "InfiniBand");
    assert_finding(KVP_DOCTOR_WARNING, "port_down", "DOWN", "subnet manager");
    all_is_well(state);
    port->has_verbs = false;
    assert_finding(KVP_DOCTOR_ERROR, "no_verbs", "mlx5_1", "modprobe ib_uverbs");
    all_is_well(state);
    port->may_open = false;
    assert_finding(KVP_DOCTOR_ERROR, "no_permission", "mlx5_1", "/dev/infiniband");
    all_is_well(state);
    strcpy(port->address, "fe80::1");
    assert_finding(KVP_DOCTOR_WARNING, "link_local", "link-local", "ip address add ADDRESS/LENGTH dev eth1");
    all_is_well(state);
    facts.has_rdma_cm = false;
    assert_finding(KVP_DOCTOR_ERROR, "no_rdma_cm", "rdma_cm", "modprobe rdma_ucm");
}

/* A host whose only port is down has no rdma at all. */
TEST_WITH(test_port_down_is_an_error_where_none_is_up, all_is_well, NULL)
{
    facts.ports_n = 1;
    strcpy(facts.ports[0].state, "DOWN");
    facts.ports[0].is_used = false;
    assert_finding(KVP_DOCTOR_ERROR, "port_down", "mlx5_0 port 1 is DOWN", "ip link set eth0 up");
}

TEST_WITH(test_mtu, all_is_well, NULL)
{
    facts.ports[0].mtu_bytes = facts.ports[1].mtu_bytes = 1024;
    facts.ports_n = 1;
    assert_finding(KVP_DOCTOR_INFO, "small_mtu", "packets of 1024 bytes", "ip link set eth0 mtu 4200");
    all_is_well(state);
    strcpy(facts.ports[0].link_layer, "InfiniBand");
    facts.ports[0].mtu_bytes = 2048;
    assert_finding(KVP_DOCTOR_WARNING, "mtu_differs", "of 2048 bytes, mlx5_1 port 1 of 4096", "mtu");
}

TEST_WITH(test_limits, all_is_well, NULL)
{
    facts.memlock_bytes = 8u << 20;
    assert_finding(KVP_DOCTOR_ERROR, "memlock", "may lock 8192 KiB", "LimitMEMLOCK=infinity");
    facts.memlock_bytes = 2ull << 30; /* less than this host's node has */
    assert_finding(KVP_DOCTOR_ERROR, "memlock", "at least 4096 MiB", "ulimit -l");
    facts.memlock_bytes = 4ull << 30;
    assert_int_equal(kvp_doctor_judge(&facts, findings, KVP_ARRAY_LEN(findings)), 0);
    all_is_well(state);
    facts.mappings_max = 63; /* 16 chunks, each of two files that are mapped twice */
    assert_finding(KVP_DOCTOR_ERROR, "mappings", "in 64 pieces, and vm.max_map_count is 63", "vm.max_map_count=128");
    facts.mappings_max = 64;
    facts.open_files_max = 543;
    assert_finding(KVP_DOCTOR_WARNING, "node_files", "node-0 takes 544 open files for its 16 chunks", "ulimit -Hn 544");
    nodes[0].is_here = false;
    nodes[0].probes[SHM].was_made = false;
    assert_int_equal(kvp_doctor_judge(&facts, findings, KVP_ARRAY_LEN(findings)), 0);
    all_is_well(state);
    facts.open_files = 1000;
    assert_finding(KVP_DOCTOR_WARNING, "open_files", "may open 1000 files", "ulimit -n");
    facts.open_files = 255;
    assert_finding(KVP_DOCTOR_ERROR, "open_files", "may open 255 files", "ulimit -n");
    all_is_well(state);
    strcpy(facts.shmem_huge, "never");
    assert_finding(KVP_DOCTOR_INFO, "huge_pages", "no huge pages", "echo advise");
    nodes[0].is_here = false;
    assert_int_equal(kvp_doctor_judge(&facts, findings, KVP_ARRAY_LEN(findings)), 0);
    all_is_well(state);
    facts.ports[0].max_registration_bytes = 64u << 20;
    assert_finding(KVP_DOCTOR_ERROR, "registration", "registers 64 MiB", "--chunk-bytes");
}

/* Where rdma is not used the memory that may be locked is worth a word, no more. */
TEST_WITH(test_machine_without_rdma, all_is_well, NULL)
{
    facts.ports_n = 0;
    facts.transports[RDMA].is_usable = false;
    strcpy(facts.transports[RDMA].why, "rdma cannot be used here: no RDMA device");
    strcpy(nodes[1].transport, "tcp");
    strcpy(nodes[1].offers, "tcp");
    assert_finding(KVP_DOCTOR_INFO, "no_rdma", "no RDMA device", "");
    facts.transports[RDMA].is_named = true;
    assert_finding(KVP_DOCTOR_ERROR, "transport_named", "no RDMA device", "--transports");
    facts.transports[RDMA].is_named = false;
    facts.transports[RDMA].is_wished = true;
    assert_finding(KVP_DOCTOR_ERROR, "device_named", "no RDMA device", "unset KVPOOL_RDMA_DEVICE");
    facts.transports[RDMA].is_out = true; /* then nobody asks for it */
    assert_int_equal(kvp_doctor_judge(&facts, findings, KVP_ARRAY_LEN(findings)), 0);
    facts.memlock_bytes = 65536;
    assert_finding(KVP_DOCTOR_INFO, "memlock", "may lock 64 KiB", "ulimit -l");
}

/* Nodes are not blamed for what keeps every pool from being opened here. */
TEST_WITH(test_what_was_asked_for_does_not_work, all_is_well, NULL)
{
    facts.transports[RDMA].is_usable = false;
    facts.transports[RDMA].is_named = true;
    strcpy(facts.transports[RDMA].why, "rdma cannot be used here: no RDMA device mlx5_9");
    strcpy(nodes[0].transport, "none");
    strcpy(nodes[1].transport, "none");
    assert_finding(KVP_DOCTOR_ERROR, "transport_named", "no RDMA device mlx5_9", "--transports");
}

TEST_WITH(test_adapter_that_cannot_be_used, all_is_well, NULL)
{
    facts.transports[RDMA].is_usable = false;
    strcpy(facts.transports[RDMA].why, "librdmacm.so.1 is not installed");
    strcpy(nodes[1].offers, "tcp");
    strcpy(nodes[1].transport, "tcp");
    assert_finding(KVP_DOCTOR_ERROR, "rdma_unusable", "librdmacm.so.1 is not installed", "other findings");
}

TEST_WITH(test_pool, all_is_well, NULL)
{
    facts.pool_err = KVPOOL_UNREACHABLE;
    facts.nodes_n = 0;
    strcpy(facts.pool_why, "no session with master 10.0.0.1:50051: Connection refused");
    assert_finding(KVP_DOCTOR_ERROR, "pool_unreachable", "10.0.0.1:50051: Connection refused", "KVPOOL_MASTER");
    strcpy(facts.pool_why, "no session with master a:1,b:1: no master leads; a:1: does not claim to lead");
    assert_finding(KVP_DOCTOR_ERROR, "no_leader", "no master leads", "etcd");
    all_is_well(state);
    strcpy(facts.pool_software, "0.9.0");
    assert_finding(KVP_DOCTOR_WARNING, "versions", "version 0.9.0", "masters first");
    all_is_well(state);
    facts.is_log_refusing = true;
    assert_finding(KVP_DOCTOR_ERROR, "log_failed", "cannot write its log", "--data-dir");
    all_is_well(state);
    facts.nodes_n = 0;
    assert_finding(KVP_DOCTOR_ERROR, "no_nodes", "no node", "kvpool-node");
    all_is_well(state);
    facts.has_more_nodes = true;
    assert_finding(KVP_DOCTOR_INFO, "more_nodes", "first 256", "");
    all_is_well(state);
    facts.wrong_n = 1;
    strcpy(facts.wrong[0].code, "master_missing");
    strcpy(facts.wrong[0].text, "master 10.0.0.2:50051 is missing");
    assert_finding(KVP_DOCTOR_WARNING, "master_missing", "10.0.0.2:50051 is missing", "if it does not run, start it");
}

TEST_WITH(test_nodes, all_is_well, NULL)
{
    strcpy(nodes[1].state, "lost");
    nodes[1].probes[RDMA].was_made = nodes[1].probes[TCP].was_made = false;
    assert_finding(KVP_DOCTOR_ERROR, "node_away", "node-1 at 10.1.0.9:7000 is lost", "start the node again");
    all_is_well(state);
    strcpy(nodes[1].transport, "none");
    strcpy(nodes[1].offers, "shm");
    assert_finding(KVP_DOCTOR_ERROR, "no_way", "node-1 offers shm", "--transports");
    all_is_well(state);
    strcpy(nodes[1].transport, "tcp");
    facts.transports[RDMA].is_usable = false;
    facts.transports[RDMA].is_out = true;
    assert_finding(KVP_DOCTOR_WARNING, "rdma_unused", "node-1 offers rdma", "mend");
}

TEST_WITH(test_probes, all_is_well, NULL)
{
    kvp_doctor_probe_t *probe = &nodes[1].probes[RDMA];

    probe->err = probe->small_err = KVPOOL_NODE_LOST;
    assert_finding(KVP_DOCTOR_ERROR, "node_unreachable", "node-1 at 10.1.0.9:7000 is not reached by rdma: a put",
                   "--rdma-device");
    assert_finding(KVP_DOCTOR_ERROR, "node_unreachable", "(NODE_LOST)", "the same MTU");
    probe->err = probe->small_err = KVPOOL_NOMEM;
    assert_finding(KVP_DOCTOR_ERROR, "node_unreachable", "(NOMEM)", "ulimit -l unlimited");
    probe->err = KVPOOL_NODE_LOST;
    probe->small_err = KVPOOL_OK;
    assert_finding(KVP_DOCTOR_ERROR, "mtu", "256 bytes go through by rdma, 65536 do not",
                   "ip link set IFNAME mtu 4200");
    all_is_well(state);
    probe->err = probe->small_err = KVPOOL_NO_SPACE;
    strcpy(probe->detail, "no memory is free");
    assert_finding(KVP_DOCTOR_INFO, "not_probed", "node-1 was not probed by rdma: no memory is free", "kvpool stat");
    all_is_well(state);
    probe->err = probe->small_err = KVPOOL_DENIED;
    probe->is_left = true;
    assert_finding(KVP_DOCTOR_INFO, "not_probed", "this identity may not put", "of a writer or an admin");
    all_is_well(state);
    probe->err = probe->small_err = KVPOOL_RETRY_AFTER;
    strcpy(probe->detail, "a node does not answer");
    assert_finding(KVP_DOCTOR_ERROR, "no_place",
                   "node-1 at 10.1.0.9:7000 gave no place for a probe by rdma in time: a node does not", "its log");
    strcpy(nodes[0].state, "lost");
    assert_int_equal(kvp_doctor_judge(&facts, findings, KVP_ARRAY_LEN(findings)), 2);
    assert_string_equal(findings[1].code, "not_probed");
    all_is_well(state);
    probe->is_wrong = true;
    assert_finding(KVP_DOCTOR_ERROR, "wrong_bytes", "node-1", "network");
    all_is_well(state);
    probe->is_left = true;
    assert_finding(KVP_DOCTOR_WARNING, "probe_left", "node-1", "kvpool rm --force --regex");
    all_is_well(state);
    probe = &nodes[1].probes[TCP];
    probe->get_err = probe->small_err = KVPOOL_DEADLINE;
    assert_finding(KVP_DOCTOR_ERROR, "node_unreachable", "by tcp: a get of 65536 bytes", "firewall");
    snprintf(facts.protection, sizeof facts.protection, "control tls, http loopback");
    assert_finding(KVP_DOCTOR_ERROR, "node_unreachable", "by tcp", "--tls-cert");
    snprintf(nodes[1].protection, sizeof nodes[1].protection, "control tls, http closed, data loopback");
    assert_finding(KVP_DOCTOR_ERROR, "node_unreachable", "by tcp", "firewall");
    all_is_well(state);
    probe = &nodes[0].probes[SHM];
    probe->err = probe->small_err = KVPOOL_NODE_LOST;
    assert_finding(KVP_DOCTOR_ERROR, "node_unreachable", "by shm", "socket");
}

/* More findings than there is room for are cut, never written past the end. */
TEST_WITH(test_findings_are_bounded, all_is_well, NULL)
{
    facts.memlock_bytes = 0;
    facts.open_files = 0;
    findings[1].code = "untouched";
    assert_int_equal(kvp_doctor_judge(&facts, findings, 1), 1);
    assert_string_equal(findings[1].code, "untouched");
}

/* ---- a tree like /sys */
static char root[] = "/tmp/kvp-doctor-XXXXXX";

static void
put_file(const char *path, const char *text)
{
    char command[512];

    snprintf(command, sizeof command, "mkdir -p \"$(dirname %s/%s)\" && echo '%s' > %s/%s", root, path, text, root,
             path);
    assert_int_equal(system(command), 0);
}

static int
drop_tree(void **state)
{
    char command[64];

    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

#define PORT "sys/class/infiniband/rxe0/ports/1/"

TEST_WITH(test_machine_is_read_from_sys, NULL, drop_tree)
{
    const kvp_doctor_port_t *port = &facts.ports[0];

    memset(&facts, 0, sizeof facts);
    assert_non_null(mkdtemp(root));
    put_file(PORT "state", "4: ACTIVE");
    put_file(PORT "link_layer", "Ethernet");
    put_file(PORT "rate", "2.5 Gb/sec (1X SDR)");
    put_file(PORT "gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001");
    put_file(PORT "gids/1", "0000:0000:0000:0000:0000:ffff:0a63:0001");
    put_file(PORT "gids/2", "0000:0000:0000:0000:0000:0000:0000:0000");
    put_file(PORT "gid_attrs/types/0", "IB/RoCE v1");
    put_file(PORT "gid_attrs/types/1", "RoCE v2");
    put_file(PORT "gid_attrs/ndevs/0", "eth1");
    put_file("sys/class/infiniband/abc/ports/1/state", "1: DOWN");
    put_file("sys/class/net/eth1/mtu", "9000");
    put_file("sys/class/infiniband/rxe0/device/numa_node", "1");
    put_file("sys/class/infiniband_verbs/uverbs0/ibdev", "rxe0");
    put_file("dev/infiniband/uverbs0", "");
    put_file("dev/infiniband/rdma_cm", "");
    put_file("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size [advise] never deny force");
    kvp_doctor_look_here(root, &facts);

    assert_int_equal(facts.ports_n, 2);
    assert_string_equal(facts.ports[0].device, "abc");
    assert_string_equal(facts.ports[0].state, "DOWN");
    assert_false(facts.ports[0].has_verbs);
    port = &facts.ports[1];
    assert_string_equal(port->device, "rxe0");
    assert_int_equal(port->port, 1);
    assert_string_equal(port->state, "ACTIVE");
    assert_string_equal(port->netdev, "eth1");
    assert_int_equal(port->netdev_mtu_bytes, 9000);
    assert_int_equal(port->numa_node, 1);
    assert_true(port->has_verbs && port->may_open && facts.has_rdma_cm);
    assert_int_equal(port->gids_n, 2);
    assert_string_equal(port->gids[0].type, "IB/RoCE v1");
    assert_string_equal(port->gids[1].address, "10.99.0.1");
    assert_string_equal(port->gids[1].type, "RoCE v2");
    assert_string_equal(facts.shmem_huge, "advise");
    assert_true(facts.open_files > 0);
}

/* A machine with nothing of it is no error. */
TEST(test_machine_without_any_of_it)
{
    memset(&facts, 0, sizeof facts);
    kvp_doctor_look_here("/nonexistent", &facts);
    assert_int_equal(facts.ports_n, 0);
    assert_false(facts.has_rdma_cm);
    assert_string_equal(facts.shmem_huge, "");
}

TEST_MAIN()
