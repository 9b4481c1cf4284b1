/* SPDX-License-Identifier: Apache-2.0
 * The table of kvpool-node's options. */
#include "node/daemon/opts.h"

static const kvp_opt_t opts[] = {
    {KVP_OPT(STRING, "master", kvp_node_opts_t, masters), .fallback = "127.0.0.1:50051",
     .metavar = "HOST:PORT[,HOST:PORT]",
     .help =
         "The pool's masters, or etcd://HOST:PORT[;HOST:PORT]: the members of the etcd in which they are registered."},
    {KVP_OPT_TEXT("cluster", kvp_node_opts_t, cluster, "NAME"),
     .help = "The cluster name under which etcd lists the masters: their --cluster. Default: $MC_STORE_CLUSTER_ID, "
             "else kvpool."},
    {KVP_OPT(STRING, "name", kvp_node_opts_t, name),
     .help = "The node's name, unique in the pool. Default: the host's name, a dash, the port."},
    {KVP_OPT_TEXT("token-file", kvp_node_opts_t, creds.token_file, "FILE"),
     .help = "The node's token for a master that asks for identities: a file with the token of the role `node` and of "
             "this node's name, for this user alone (mode 0600)."},
    {KVP_OPT_TEXT("tls-ca", kvp_node_opts_t, creds.tls_ca, "FILE"),
     .help = "The CA of the pool (`kvpool cert init`): certificates of others are refused. For --tls-cert."},
    {KVP_OPT_TEXT("tls-cert", kvp_node_opts_t, creds.tls_cert, "FILE"),
     .help = "This node's certificate (`kvpool cert node`), whose name is also the default of --name. With it, control "
             "connections over TCP use TLS; data connections do not. Changed files are read again."},
    {KVP_OPT_TEXT("tls-key", kvp_node_opts_t, creds.tls_key, "FILE"),
     .help = "The key of --tls-cert, for this user alone (mode 0600)."},
    {KVP_OPT_TEXT("tls-crl", kvp_node_opts_t, creds.tls_crl, "FILE"),
     .help = "The list of revoked certificates of --tls-ca. New connections with one are refused."},
    {KVP_OPT(MEMORY, "memory", kvp_node_opts_t, memory_bytes), .fallback = "4GiB", .min = 64u << 10,
     .help = "Memory that the node gives to the pool. Memory for the objects' descriptors comes on top. N% is a share "
             "of the memory of the machine or of its control group, whichever is smaller. The node refuses a size that "
             "does not fit."},
    {KVP_OPT(STRINGS, "ssd", kvp_node_opts_t, ssd), .metavar = "DIR:SIZE",
     .help = "An SSD tier: objects that leave memory are kept in a file of this size in DIR. May be given several "
             "times, once for each device."},
    {KVP_OPT(BYTES, "ssd-writes", kvp_node_opts_t, ssd_writes), .fallback = "0",
     .help = "The most bytes a day that are written to the SSD tier, to spare the devices; 0 = no limit. Objects "
             "beyond it are not written."},
    {KVP_OPT(BYTES, "chunk-bytes", kvp_node_opts_t, chunk_bytes), .min = 64u << 10, .max = 64ull << 30,
     .help = "Memory is cut into chunks of this size, and no object is larger than a chunk. Default: a power of two of "
             "at most a sixteenth of the memory, from 16MiB to 256MiB; larger if there would be over 1024 chunks."},
    {KVP_OPT(STRING, "listen", kvp_node_opts_t, listen), .fallback = "127.0.0.1:0", .metavar = "HOST:PORT",
     .help = "The address at which clients connect; other hosts must reach it. Port 0 = any free port."},
    {KVP_OPT(BOOL, "insecure", kvp_node_opts_t, creds.is_insecure),
     .help = "Opens ports without TLS or tokens at addresses that other hosts reach: every host that connects can then "
             "read and write the memory. Without this option such an address is refused."},
    {KVP_OPT_TEXT("transports", kvp_node_opts_t, transports, "NAME[,NAME]"),
     .help = "The transports that clients may use. Default: shm,rdma,tcp, without rdma if there is no device."},
    {KVP_OPT_TEXT("rdma-device", kvp_node_opts_t, rdma_device, "NAME[:PORT][,NAME[:PORT]]"),
     .help = "The RDMA devices to use, as `kvpool doctor` lists them. Default: all with an active port."},
    {KVP_OPT_TEXT("rdma-gid-index", kvp_node_opts_t, rdma_gid_index, "N"),
     .help = "The GID index of each port. Default: the RoCE v2 GID of its IPv4 address."},
    {KVP_OPT(HOSTPORT, "http", kvp_node_opts_t, http), .fallback = "none",
     .help = "The address at which /health and /metrics are served; `none` = not served."},
    {KVP_OPT_TEXT("tokens", kvp_node_opts_t, http_token_file, "FILE"),
     .help = "The tokens that --http accepts (`kvpool token create`). With it, paths other than / and /health need a "
             "token whose role allows the request. The file is read again when it changes."},
    {KVP_OPT(BOOL, "metrics-token", kvp_node_opts_t, has_metrics_token),
     .help = "With --tokens: /metrics needs a token of the role `monitor`, too."},
    {KVP_OPT(BOOL, "http-tls", kvp_node_opts_t, creds.has_http_tls),
     .help = "--http serves https alone, with --tls-cert and --tls-key as they are at the start."},
    {KVP_OPT_TEXT("audit", kvp_node_opts_t, audit, "FILE"),
     .help = "Refusals of --http are lines of this file instead of the log: at most 100 a second, and then their "
             "number. The file may be moved away at any time."},
    {KVP_OPT(BOOL, "rest", kvp_node_opts_t, has_rest), .fallback = "no",
     .help =
         "Serve objects under /api/ of --http, to every host that reaches it: put, get, exist, remove, remove_all."},
    {KVP_OPT(STRING, "host-id", kvp_node_opts_t, host_id),
     .help = "The id of this host; only programs with the same id share memory. Default: the machine's id."},
    {KVP_OPT_TEXT("runtime-dir", kvp_node_opts_t, runtime_dir, "DIR"),
     .help =
         "The directory of the socket for this host's processes, mode 0700, or 0750 for its group. The master's socket "
         "is looked for there, too. Default: $XDG_RUNTIME_DIR/kvpool, /run/kvpool for root, or /tmp/kvpool-UID."},
    {KVP_OPT_TEXT("trust-uid", kvp_node_opts_t, trust_uid, "UID[,UID]"),
     .help = "Users whose processes may share memory with the node, besides its own and root."},
    {KVP_OPT(ENUM, "keeper", kvp_node_opts_t, keeper), .fallback = "auto", .choices = "none|auto|until-stop",
     .help = "A keeper process holds the memory for the next node of this name. auto: however this node ends; "
             "until-stop: unless a signal stops the node; none: no keeper."},
    {KVP_OPT(DURATION_NS, "keeper-hold", kvp_node_opts_t, keeper_hold_ns), .fallback = "10m",
     .max = 30ull * 86400u * 1000000000u,
     .help = "How long the keeper holds the memory without a node. More than the master's --node-forget is of no use: "
             "the master has forgotten the objects by then."},
    {KVP_OPT(DURATION_NS, "drain-on-stop", kvp_node_opts_t, drain_ns), .fallback = "0s", .max = 86400ull * 1000000000u,
     .help =
         "On SIGTERM, move the node's objects to other nodes for at most this time, then stop. After a complete drain "
         "the keeper gives the memory back. A second SIGTERM stops at once. 0s = stop without a drain."},
    {KVP_OPT(U64, "lanes", kvp_node_opts_t, lanes), .fallback = "0", .max = 8,
     .help = "Threads that serve bytes over the network; 0 = one for each 8 CPUs."},
    {KVP_OPT(BOOL, "populate", kvp_node_opts_t, has_populate), .fallback = "yes",
     .help = "Touch all memory in the background, so that no put waits for pages. Takes half of one processor until it "
             "is done."},
};

const kvp_conf_spec_t kvp_node_spec = {
    .program = "kvpool-node",
    .summary = "Gives this host's memory to a kvpool and serves it.",
    .opts = opts,
    .opt_count = KVP_ARRAY_LEN(opts),
};
