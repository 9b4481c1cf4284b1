/* SPDX-License-Identifier: Apache-2.0
 * Listening addresses of the nodes that the tool starts. The loopback address leads to no RDMA
 * device. Main thread only. */
#ifndef KVP_TOOLS_BASE_NODE_ADDR_H
#define KVP_TOOLS_BASE_NODE_ADDR_H

#include "tools/base/cli.h"

#include "common/parse.h"

/* The option of the verbs that start a pool; to is a const char *, NULL at first. */
#define KVP_CLI_NODE_LISTEN(to)                                                                                        \
    {                                                                                                                  \
        "node-listen", KVP_CLI_TEXT, to, "ADDRESS",                                                                    \
            "of this host, where nodes that are started listen, at free ports (default 127.0.0.1; where rdma is "      \
            "named, an "                                                                                               \
            "RDMA device's)",                                                                                          \
            0, 0                                                                                                       \
    }

/* kvp_cli_node_listen writes HOST:PORT with port 0: the requested address, or if rdma is named
 * (--transports, KVPOOL_TRANSPORTS) that of the first working RDMA device, else the loopback
 * address. A child opens the devices, because workers forked later could not use what this process
 * has opened. Any result but DONE was printed already. */
int kvp_cli_node_listen(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, const char *asked,
                        char listen_out[KVP_HOSTPORT_TEXT_MAX]);

#endif
