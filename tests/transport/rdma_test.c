/* SPDX-License-Identifier: Apache-2.0
 * rdma against the conformance suite, on a device of this machine; skipped where there is none. */
#include "tests/transport/suite.h"

#include "transport/rdma/verbs/dev.h"

#include <netdb.h>
#include <stdio.h>

#define SKIPPED 77

int
main(void)
{
    kvp_rdma_dev_t *devs[2];
    char host[NI_MAXHOST];
    const struct sockaddr_storage *addr;
    const char *why;
    size_t n;
    int failed;

    if (kvp_verbs_ibv.devs_open(NULL, devs, 2, &n, &why) != KVP_OK) {
        printf("skipped: %s\n", why);
        return SKIPPED;
    }
    /* Of two devices the asking side takes one and the serving side the other. */
    addr = &devs[n - 1]->info.addr;
    if (getnameinfo((const struct sockaddr *)addr, sizeof *addr, host, sizeof host, NULL, 0, NI_NUMERICHOST) != 0)
        return 1;
    suite_host = host;
    suite_extent_bytes = 64 << 10;
    printf("device %s address %s of %zu\n", devs[n - 1]->info.name, host, n);
    failed = suite_run("rdma");
    suite_lends = true;
    failed += suite_run("rdma");
    kvp_verbs_ibv.devs_close();
    return failed == 0 ? 0 : 1;
}
