/* SPDX-License-Identifier: Apache-2.0
 * Finds out how much memory the machine and this process's control groups allow. Reads /proc and /sys, so it is
 * not for hot paths. Any thread. */
#ifndef KVP_COMMON_RAM_H
#define KVP_COMMON_RAM_H

#include "common/base.h"

#define KVP_RAM_WHERE_MAX 256u

typedef struct {
    uint64_t total_bytes; /* memory of the machine, or the lowest limit of a control group of this process */
    /* memory that can still be allocated without swapping: the minimum of machine and groups */
    uint64_t available_bytes;
    char where[KVP_RAM_WHERE_MAX]; /* name of the tightest limit: "this machine", or "the control group DIR" */
} kvp_ram_t;

/* kvp_ram_look reads the files below root ("" except in tests). Both versions of control groups, and limits of
 * parent groups, count. A value that the kernel does not report is UINT64_MAX. */
void kvp_ram_look(const char *root, kvp_ram_t *ram_out);

/* kvp_format_mib writes a number of bytes in whole MiB, rounded down, in a form that kvp_parse_bytes reads, and
 * returns dst. */
#define KVP_MIB_TEXT_MAX 24u
const char *kvp_format_mib(uint64_t bytes, char dst[KVP_MIB_TEXT_MAX]);

#endif
