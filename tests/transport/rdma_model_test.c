/* SPDX-License-Identifier: Apache-2.0
 * rdma on the model NIC: the conformance suite, with one to three rails. */
#include "transport/rdma/table.h"
#include "tests/transport/suite.h"

#include "tests/transport/model_nic.h"
#include "tests/transport/sanitizer.h"

#include <stdio.h>

#define SEEDS (IS_TSAN ? 1u : 6u) /* of one, two and three rails each */

int
main(void)
{
    int failed = 0;

    suite_host = "10.99.1.1";
    suite_extent_bytes = 16 << 10;
    suite_own = &kvp_verbs_model;
    suite_stall = model_nic_pause;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        model_nic_conf_t conf = {.devs_n = 1 + (uint32_t)(seed % 3)};
        size_t left = model_nic_reset(seed, &conf);

        suite_lends = seed % 2 == 0;
        printf("seed %llu devices %u local memory %s\n", (unsigned long long)seed, conf.devs_n,
               suite_lends ? "lent" : "copied");
        failed += suite_run("rdma");
        left = model_nic_reset(seed, NULL);
        if (left > 0) printf("%zu things were left open\n", left);
        failed += left > 0;
    }
    return failed == 0 ? 0 : 1;
}
