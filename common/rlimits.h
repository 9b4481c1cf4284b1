/* SPDX-License-Identifier: Apache-2.0
 * What the kernel lets a process have of descriptors and mappings, of which shared memory takes many. Any thread.
 */
#ifndef KVP_COMMON_RLIMITS_H
#define KVP_COMMON_RLIMITS_H

#include "common/base.h"

typedef struct {
    uint64_t has; /* this process, now */
    uint64_t max; /* UINT64_MAX = no limit, or unknown to this process */
} kvp_limit_t;

/* kvp_limit_files returns the open files and their soft limit, kvp_limit_maps the mappings and
 * vm.max_map_count. Both read all of the process's entries in /proc; kvp_limit_maps_max does not. */
kvp_limit_t kvp_limit_files(void);
kvp_limit_t kvp_limit_maps(void);
uint64_t kvp_limit_maps_max(void);

/* kvp_limit_raise_files raises the soft limit of open files to the hard one; a failure is logged and harmless. */
void kvp_limit_raise_files(void);

/* kvp_limit_survive_file_size makes a write over the file-size limit fail with EFBIG. By default
 * the signal SIGXFSZ ends the process without a log line. For programs only: in a library, signals
 * belong to the host program. */
void kvp_limit_survive_file_size(void);

#endif
