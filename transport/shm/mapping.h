/* SPDX-License-Identifier: Apache-2.0
 * Shared memory files, and mappings of them that huge pages can back. Any thread. */
#ifndef KVP_TRANSPORT_SHM_MAPPING_H
#define KVP_TRANSPORT_SHM_MAPPING_H

#include "common/base.h"
#include "transport/transport.h"

#define KVP_HUGE_BYTES (2u << 20) /* the size of a huge page, which one entry of the page table's PMD level maps */

/* kvp_map_shared maps the first len bytes of a memory file. A mapping of KVP_HUGE_BYTES or more starts at a multiple of
 * KVP_HUGE_BYTES, because only there the kernel can map a whole huge page of the file. NULL: see errno. The caller ends
 * the mapping with munmap(addr, len). */
void *kvp_map_shared(int fd, size_t len, int prot);

/* kvp_make_huge populates len bytes of a mapping made by kvp_map_shared with huge pages; len and addr are multiples of
 * KVP_HUGE_BYTES. The contents stay, even while other processes store into them. Returns false, with at most a few
 * pages populated, if the kernel cannot make huge pages now; *is_hopeless_out true: nor in a later call. */
bool kvp_make_huge(void *addr, size_t len, bool *is_hopeless_out);

/* kvp_touch_ahead populates len bytes of a mapping made by kvp_map_shared, creating missing pages, before the first
 * store (is_for_writing) or load. addr is the beginning of a page. Returns false with errno if only some pages were
 * populated; page faults then populate the rest. */
bool kvp_touch_ahead(void *addr, size_t len, bool is_for_writing);

/* kvp_memfile_make makes a memory file of len zero bytes and maps it. The file is sealed, the mapping starts at a
 * multiple of a huge page, and forked children do not inherit it; name is for /proc. False: see errno; the caller
 * must still call kvp_memfile_drop. */
bool kvp_memfile_make(const char *name, uint64_t len, kvp_mem_t *mem_out) KVP_MUST_USE;

/* kvp_memfile_drop unmaps a memory file and frees its pages, even if other processes have the file mapped: no process
 * sees their later stores. Leaves the empty value {.fd = -1}, on which it may also be called. */
void kvp_memfile_drop(kvp_mem_t *mem);

/* kvp_memfile_adopt maps a file that another process made with kvp_memfile_make, and takes fd in every case. Returns
 * false with errno: EINVAL if the file has another length or is not sealed. The caller must still call
 * kvp_memfile_leave, which unmaps and closes the file, and leaves the pages to the processes that have the file. */
bool kvp_memfile_adopt(int fd, uint64_t len, kvp_mem_t *mem_out) KVP_MUST_USE;
void kvp_memfile_leave(kvp_mem_t *mem);

#endif
