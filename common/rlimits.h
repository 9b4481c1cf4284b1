/* SPDX-License-Identifier: Apache-2.0
 * The kernel's limits of a process's file descriptors and mappings, of which shared memory needs many. Any thread. */
#ifndef KVP_COMMON_RLIMITS_H
#define KVP_COMMON_RLIMITS_H

#include "common/base.h"

typedef struct {
    uint64_t has; /* number of open files or mappings that this process has now */
    uint64_t max; /* limit of open files or mappings; UINT64_MAX = no limit, or unknown */
} kvp_limit_t;

/* kvp_limit_files returns the number of open files and its soft limit, kvp_limit_maps the number of mappings and
 * vm.max_map_count. Both read all of the process's entries in /proc; kvp_limit_maps_max returns only
 * vm.max_map_count, without this cost. */
kvp_limit_t kvp_limit_files(void);
kvp_limit_t kvp_limit_maps(void);
uint64_t kvp_limit_maps_max(void);

/* kvp_limit_raise_files raises the soft limit of open files to the hard limit. A failure is logged and harmless. */
void kvp_limit_raise_files(void);

/* kvp_limit_survive_file_size makes a write above the file-size limit fail with EFBIG. By default the signal SIGXFSZ
 * ends the process without a log line. Only for programs: in a library, signals belong to the host program. */
void kvp_limit_survive_file_size(void);

#endif
