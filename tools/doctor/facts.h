/* SPDX-License-Identifier: Apache-2.0
 * The facts that `kvpool doctor` collects. host.c (this machine) and pool.c (the pool, and probes of each node)
 * collect the facts. judge.c only turns facts into findings, so that tests can check findings for facts that no
 * test machine has. */
#ifndef KVP_TOOLS_DOCTOR_FACTS_H
#define KVP_TOOLS_DOCTOR_FACTS_H

#include "common/base.h"
#include "common/parse.h"
#include "common/ram.h"
#include "common/trust/creds.h"

#define KVP_DOCTOR_GIDS_MAX 16u /* limit of the GIDs of a port that are shown */
#define KVP_DOCTOR_PORTS_MAX 32u
#define KVP_DOCTOR_TRANSPORTS 3u /* number of transports: shm, rdma, tcp */
#define KVP_DOCTOR_NODES_MAX 256u /* limit of the nodes that are probed */
#define KVP_DOCTOR_FINDINGS_MAX 128u
#define KVP_DOCTOR_WRONG_MAX 64u
#define KVP_DOCTOR_SMALL_BYTES 256u /* size of the small probe, which fits in one packet of any network */
#define KVP_DOCTOR_PROBE_BYTES 65536u /* size of the large probe, which fills packets of any size */
#define KVP_DOCTOR_NO_LIMIT UINT64_MAX

/* ---- facts about the machine and the pool */
typedef struct {
    int index;
    char address[48];
    char type[16]; /* GID type, such as "RoCE v2" or "IB/RoCE v1" */
} kvp_doctor_gid_t;

typedef struct {
    char device[64];
    unsigned port;
    char state[24]; /* state of the port: "ACTIVE", "DOWN", ... */
    char link_layer[24]; /* link layer of the port: "Ethernet" or "InfiniBand" */
    char rate[48];
    char netdev[32]; /* name of the port's network interface; "" = unknown */
    uint32_t netdev_mtu_bytes;
    int numa_node; /* NUMA node of the adapter; -1 = unknown */
    bool has_verbs; /* a flag: the adapter has a verbs device, so programs can open it */
    bool may_open; /* a flag: this user may open the verbs device */
    kvp_doctor_gid_t gids[KVP_DOCTOR_GIDS_MAX];
    size_t gids_n;
    bool is_used; /* a flag: libkvpool uses this RDMA port, with the address and limits below */
    char address[48];
    uint32_t mtu_bytes;
    uint64_t max_registration_bytes;
    uint32_t max_work_requests;
} kvp_doctor_port_t;

typedef struct {
    char name[8];
    bool is_named; /* a flag: named by --transports or KVPOOL_TRANSPORTS */
    bool is_wished; /* a flag: KVPOOL_RDMA_DEVICE or KVPOOL_RDMA_GID_INDEX selects rdma, so it must work */
    bool is_out; /* a flag: the options exclude the transport from use */
    bool is_usable;
    char why[512]; /* reason why the transport is not usable */
} kvp_doctor_transport_t;

typedef struct {
    bool was_made;
    int err; /* error of the put of the last probe object; after a failure no get was tried */
    int get_err;
    bool is_wrong; /* a flag: the get returned bytes that differ from the put */
    char detail[128]; /* the master's reason for refusing the put */
    int small_err; /* error of the small object's put or get, which precede the large one's */
    uint64_t put_ns, get_ns;
    bool is_left; /* a flag: the probe's object could not be removed */
} kvp_doctor_probe_t;

typedef struct {
    char name[132];
    uint32_t segment_id;
    char state[16];
    char addr[320];
    char offers[64];
    char host_id[132];
    char protection[KVP_PROTECTION_MAX]; /* text for people: how the node's ports are protected; "" = unknown */
    /* transport that a client on this host uses for the node; "none" = no transport, or the pool does not open as
     * configured */
    char transport[8];
    bool is_here; /* a flag: the node counts as running on this host */
    bool is_drained; /* a flag: the node's drain is complete: no object is left in its memory */
    uint64_t drain_evicted; /* number of objects that the pool evicted for the node's drain */
    uint64_t drain_ssd; /* number of objects that only the node's SSD has, while the node drains */
    char drain_waits[256]; /* reason why the node's drain cannot continue; "" = it continues, or there is none */
    uint64_t size_bytes, chunk_bytes;
    uint64_t objects; /* of a tier: number of the objects that only the tier has */
    kvp_doctor_probe_t probes[KVP_DOCTOR_TRANSPORTS];
} kvp_doctor_node_t;

typedef struct {
    /* Facts about this machine. */
    uint64_t memlock_bytes; /* bytes of memory that this process may lock; NO_LIMIT = no limit */
    uint64_t open_files, open_files_max; /* soft and hard limit of open files; NO_LIMIT = no limit */
    uint64_t mappings_max; /* most memory mappings of a process; NO_LIMIT = unknown */
    kvp_ram_t ram;
    char shmem_huge[24]; /* kernel's huge pages for shared memory: "always", "advise", "never", ...; "" = unknown */
    /* file of another wheel in the package `mooncake` beside this program; "" = none */
    char foreign_file[544];
    /* a flag: files of the package `mooncake` are missing, for example because another wheel was removed */
    bool is_wheel_torn;
    bool has_rdma_cm; /* a flag: the device of the RDMA connection manager exists and may be opened */
    kvp_doctor_transport_t transports[KVP_DOCTOR_TRANSPORTS];
    kvp_doctor_port_t ports[KVP_DOCTOR_PORTS_MAX];
    size_t ports_n;
    /* Facts about the pool. */
    char master[256];
    char https[16 * KVP_HTTP_TEXT_MAX]; /* HTTP addresses of the masters that report one, separated by commas */
    int pool_err;
    char pool_why[512]; /* text of the reason why the pool was not opened */
    char pool_software[64];
    char protection[KVP_PROTECTION_MAX]; /* of the master */
    bool is_log_refusing; /* a flag: the master cannot write its log */
    char own_software[64];
    uint64_t open_ns; /* time that opening the pool took */
    kvp_doctor_node_t *nodes;
    size_t nodes_n;
    bool has_more_nodes;
    kvp_doctor_node_t *tiers; /* SSD tiers, of which only name, state, size and objects have a meaning */
    size_t tiers_n;
    struct {
        char code[32], text[448];
    } wrong[KVP_DOCTOR_WRONG_MAX]; /* causes why the pool is degraded: the master's, and those that daemons.c found */
    size_t wrong_n;
} kvp_doctor_facts_t;

/* kvp_doctor_is_refused returns whether the pool cannot be opened because this transport was selected and does not
 * work here. */
static inline bool
kvp_doctor_is_refused(const kvp_doctor_transport_t *transport)
{
    return !transport->is_usable && (transport->is_named || (transport->is_wished && !transport->is_out));
}

/* ---- findings from the facts */
typedef enum { KVP_DOCTOR_INFO, KVP_DOCTOR_WARNING, KVP_DOCTOR_ERROR } kvp_doctor_severity_t;

typedef struct {
    kvp_doctor_severity_t severity;
    const char *code; /* stable name for scripts, such as "port_down" */
    char what[640];
    char fix[320]; /* suggested command or setting; "" = nothing to do */
} kvp_doctor_finding_t;

/* kvp_doctor_judge writes at most cap findings, in no order of severity, and returns their number. */
size_t kvp_doctor_judge(const kvp_doctor_facts_t *facts, kvp_doctor_finding_t *findings_out, size_t cap);
const char *kvp_doctor_severity_name(kvp_doctor_severity_t severity);

/* kvp_doctor_look_here collects the facts of this machine from /proc and /sys below root ("" except in tests), and
 * from this process's limits. */
void kvp_doctor_look_here(const char *root, kvp_doctor_facts_t *facts);

#endif
