/* SPDX-License-Identifier: Apache-2.0
 * The facts that `kvpool doctor` collects. host.c (this machine) and pool.c (the pool, and probes
 * of each node) collect them; judge.c only turns them into findings, so that tests can judge facts
 * that no test machine has. */
#ifndef KVP_TOOLS_DOCTOR_FACTS_H
#define KVP_TOOLS_DOCTOR_FACTS_H

#include "common/base.h"
#include "common/ram.h"

#define KVP_DOCTOR_GIDS_MAX 16u /* shown of a port */
#define KVP_DOCTOR_PORTS_MAX 32u
#define KVP_DOCTOR_TRANSPORTS 3u /* shm, rdma, tcp */
#define KVP_DOCTOR_NODES_MAX 256u /* probed */
#define KVP_DOCTOR_FINDINGS_MAX 128u
#define KVP_DOCTOR_WRONG_MAX 16u
#define KVP_DOCTOR_SMALL_BYTES 256u /* fits in one packet of any network */
#define KVP_DOCTOR_PROBE_BYTES 65536u /* fills packets of any size */
#define KVP_DOCTOR_NO_LIMIT UINT64_MAX

/* ---- facts */
typedef struct {
    int index;
    char address[48];
    char type[16]; /* "RoCE v2", "IB/RoCE v1" */
} kvp_doctor_gid_t;

typedef struct {
    char device[64];
    unsigned port;
    char state[24]; /* "ACTIVE", "DOWN", ... */
    char link_layer[24]; /* "Ethernet", "InfiniBand" */
    char rate[48];
    char netdev[32]; /* its network interface; "" = unknown */
    uint32_t netdev_mtu_bytes;
    int numa_node; /* -1 = unknown */
    bool has_verbs; /* programs can open it */
    bool may_open; /* this user can */
    kvp_doctor_gid_t gids[KVP_DOCTOR_GIDS_MAX];
    size_t gids_n;
    bool is_used; /* libkvpool uses it, at this address and with these limits */
    char address[48];
    uint32_t mtu_bytes;
    uint64_t max_registration_bytes;
    uint32_t max_work_requests;
} kvp_doctor_port_t;

typedef struct {
    char name[8];
    bool is_named; /* named by --transports or KVPOOL_TRANSPORTS */
    bool is_wished; /* a device or a GID is selected for it, so the default does not silently leave it out */
    bool is_out; /* the options exclude it */
    bool is_usable;
    char why[512]; /* it is not */
} kvp_doctor_transport_t;

typedef struct {
    bool was_made;
    int err; /* of the put; then nothing was got */
    int get_err;
    bool is_wrong; /* other bytes came back */
    char detail[128]; /* the master's reason for refusing a put */
    int small_err; /* of a small put and get, made where the large ones failed */
    uint64_t put_ns, get_ns;
    bool is_left; /* the probe's object could not be removed */
} kvp_doctor_probe_t;

typedef struct {
    char name[132];
    uint32_t segment_id;
    char state[16];
    char addr[320];
    char offers[64];
    char host_id[132];
    char transport[8]; /* that a client here uses; "none", also where no pool opens as it was asked for */
    bool is_here; /* counts as on this host */
    uint64_t size_bytes, chunk_bytes;
    kvp_doctor_probe_t probes[KVP_DOCTOR_TRANSPORTS];
} kvp_doctor_node_t;

typedef struct {
    /* this machine */
    uint64_t memlock_bytes; /* that this process may lock; NO_LIMIT */
    uint64_t open_files, open_files_max; /* limit and its hard limit; NO_LIMIT */
    uint64_t mappings_max; /* of a process; NO_LIMIT = unknown */
    kvp_ram_t ram;
    char shmem_huge[24]; /* huge pages for shared memory: "always", "advise", "never", ...; "" = unknown */
    bool has_rdma_cm; /* the connection manager's device is there and may be opened */
    kvp_doctor_transport_t transports[KVP_DOCTOR_TRANSPORTS];
    kvp_doctor_port_t ports[KVP_DOCTOR_PORTS_MAX];
    size_t ports_n;
    /* the pool */
    char master[256];
    int pool_err;
    char pool_why[512]; /* the pool was not opened, for people */
    char pool_software[64];
    bool is_log_refusing; /* the master cannot write its log */
    char own_software[64];
    uint64_t open_ns; /* until the pool was open */
    kvp_doctor_node_t *nodes;
    size_t nodes_n;
    bool has_more_nodes;
    kvp_doctor_node_t *tiers; /* SSD tiers: name and state are known, and the size */
    size_t tiers_n;
    struct {
        char code[32], text[448];
    } wrong[KVP_DOCTOR_WRONG_MAX]; /* the master's causes of a degraded pool */
    size_t wrong_n;
} kvp_doctor_facts_t;

/* kvp_doctor_is_refused returns whether the pool cannot open because the transport was named and
 * does not work here. */
static inline bool
kvp_doctor_is_refused(const kvp_doctor_transport_t *transport)
{
    return !transport->is_usable && (transport->is_named || (transport->is_wished && !transport->is_out));
}

/* ---- findings */
typedef enum { KVP_DOCTOR_INFO, KVP_DOCTOR_WARNING, KVP_DOCTOR_ERROR } kvp_doctor_severity_t;

typedef struct {
    kvp_doctor_severity_t severity;
    const char *code; /* a stable name, "port_down" */
    char what[640];
    char fix[320]; /* a command or a setting; "" = nothing to do */
} kvp_doctor_finding_t;

/* kvp_doctor_judge writes the findings, at most cap, and returns how many; errors are not sorted before the rest. */
size_t kvp_doctor_judge(const kvp_doctor_facts_t *facts, kvp_doctor_finding_t *findings_out, size_t cap);
const char *kvp_doctor_severity_name(kvp_doctor_severity_t severity);

/* kvp_doctor_look_here fills in what is known of this machine from /proc and /sys below root (""
 * but in tests) and from this process's limits. */
void kvp_doctor_look_here(const char *root, kvp_doctor_facts_t *facts);

#endif
