/* SPDX-License-Identifier: Apache-2.0
 * Where the nodes of a pool that the tool starts listen. Nobody reaches an RDMA device by the loopback address. Main thread
 * only.
 */
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

/* kvp_cli_node_listen writes HOST:PORT, port 0: of the address that was asked for, or of the first RDMA device that works
 * here where rdma is named (--transports, KVPOOL_TRANSPORTS), else of the loopback interface. Devices are looked at by a
 * child: this process may have workers to fork, who could not use what it has opened. Not DONE: it has said why. */
int kvp_cli_node_listen(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, const char *asked,
                        char listen_out[KVP_HOSTPORT_TEXT_MAX]);

#endif
