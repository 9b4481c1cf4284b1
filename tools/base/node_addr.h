/* SPDX-License-Identifier: Apache-2.0
 * Chooses the listening addresses of the nodes that the tool starts. RDMA devices cannot be reached over the
 * loopback address. Main thread only. */
#ifndef KVP_TOOLS_BASE_NODE_ADDR_H
#define KVP_TOOLS_BASE_NODE_ADDR_H

#include "tools/base/cli.h"

#include "common/parse.h"

/* Table row of the option --node-listen, for verbs that start a pool; `to` is a const char * that is NULL at first. */
#define KVP_CLI_NODE_LISTEN(to)                                                                                        \
    {                                                                                                                  \
        "node-listen", KVP_CLI_TEXT, to, "ADDRESS",                                                                    \
            "of this host, where nodes that are started listen, at free ports (default 127.0.0.1; where rdma is "      \
            "named, an "                                                                                               \
            "RDMA device's)",                                                                                          \
            0, 0                                                                                                       \
    }

/* kvp_cli_node_listen writes HOST:PORT with port 0: the requested address; or the first working RDMA device's
 * address if rdma is named (--transports, KVPOOL_TRANSPORTS); or the loopback address. A child process opens the
 * devices, because workers that are forked later could not use devices that this process has opened. If the result
 * is not KVP_EXIT_DONE, the error has been printed. */
int kvp_cli_node_listen(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, const char *asked,
                        char listen_out[KVP_HOSTPORT_TEXT_MAX]);

#endif
