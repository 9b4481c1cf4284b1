/* SPDX-License-Identifier: Apache-2.0
 * Mapping shared memory files so that huge pages can back the mapping. Any thread. */
#ifndef KVP_TRANSPORT_SHM_MAPPING_H
#define KVP_TRANSPORT_SHM_MAPPING_H

#include "common/base.h"
#include "transport/transport.h"

#define KVP_HUGE_BYTES (2u << 20) /* of a page that one entry of the middle level maps, where pages are of 4 KiB */

/* kvp_map_shared maps the first len bytes of a memory file: at a multiple of KVP_HUGE_BYTES where that much is mapped,
 * since the kernel maps a huge page of the file whole only there. NULL: see errno. Ends with munmap(addr, len). */
void *kvp_map_shared(int fd, size_t len, int prot);

/* kvp_make_huge populates len bytes of such a mapping with huge pages; len and addr are multiples
 * of KVP_HUGE_BYTES. Contents stay, also beside concurrent stores. Returns false, with at most a
 * few pages populated, if the kernel cannot; *is_hopeless_out is false if a later try may succeed. */
bool kvp_make_huge(void *addr, size_t len, bool *is_hopeless_out);

/* kvp_touch_ahead maps len bytes of such a mapping, creating missing pages, before the first store
 * (is_for_writing) or load. addr is the beginning of a page. Returns false with errno: fewer pages
 * are mapped, and first touches map the rest. */
bool kvp_touch_ahead(void *addr, size_t len, bool is_for_writing);

/* kvp_memfile_make makes a file of len bytes, zero, sealed, mapped at a multiple of a huge page
 * where it has one, and not inherited by forked children; name is for /proc. False: see errno; the
 * caller drops it all the same. */
bool kvp_memfile_make(const char *name, uint64_t len, kvp_mem_t *mem_out) KVP_MUST_USE;

/* kvp_memfile_drop frees the pages even if other processes have the file mapped: no process sees
 * their later stores. Legal on the empty value, {.fd = -1}, which it leaves behind. */
void kvp_memfile_drop(kvp_mem_t *mem);

/* kvp_memfile_adopt maps a file that another process made so, and takes fd in every case, as make
 * leaves its own: false with errno, EINVAL where it is of another length or not sealed.
 * kvp_memfile_leave ends our part and leaves the pages to those who have the file. */
bool kvp_memfile_adopt(int fd, uint64_t len, kvp_mem_t *mem_out) KVP_MUST_USE;
void kvp_memfile_leave(kvp_mem_t *mem);

#endif
