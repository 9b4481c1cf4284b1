/* SPDX-License-Identifier: Apache-2.0
 * How much memory the machine and the control groups of this process allow. Reads /proc and /sys;
 * not for hot paths. Any thread. */
#ifndef KVP_COMMON_RAM_H
#define KVP_COMMON_RAM_H

#include "common/base.h"

#define KVP_RAM_WHERE_MAX 256u

typedef struct {
    uint64_t total_bytes; /* the machine's memory, or the lowest limit of a control group above this process */
    uint64_t available_bytes; /* that can still be taken without swapping: the least of machine and groups */
    char where[KVP_RAM_WHERE_MAX]; /* the tightest limit: "this machine", or "the control group DIR" */
} kvp_ram_t;

/* kvp_ram_look reads the files below root, which is "" but in tests. Both versions of control
 * groups and limits of parent groups count. What the kernel does not report is UINT64_MAX. */
void kvp_ram_look(const char *root, kvp_ram_t *ram_out);

/* kvp_format_mib writes a number of bytes in whole MiB, rounded down, as kvp_parse_bytes reads it, and returns dst. */
#define KVP_MIB_TEXT_MAX 24u
const char *kvp_format_mib(uint64_t bytes, char dst[KVP_MIB_TEXT_MAX]);

#endif
