/* SPDX-License-Identifier: Apache-2.0
 * The reader of traces, over an anonymous file. What it accepts must be a workload that its own bounds allow. */
#include "tools/replay/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvp_workload_t workload = {0};
    char why[KVP_TRACE_WHY_MAX] = "", path[64];
    int fd = memfd_create("trace", MFD_CLOEXEC);
    kvp_err_t err;

    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    err = kvp_trace_load(path, 100, &workload, why);
    if (err != KVP_OK && why[0] == '\0') abort();
    if (workload.requests_n > 100) abort();
    for (size_t i = 0; i < workload.requests_n; i++) {
        const kvp_request_t *r = &workload.requests[i];

        if (r->ids_n > KVP_REQUEST_BLOCKS_MAX || r->ids_at + r->ids_n > workload.ids_n) abort();
    }
    kvp_workload_fini(&workload);
    close(fd);
    return 0;
}
