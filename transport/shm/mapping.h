/* SPDX-License-Identifier: Apache-2.0
 * Mapping shared memory files so that huge pages can serve the mapping. Any thread.
 */
#ifndef KVP_TRANSPORT_SHM_MAPPING_H
#define KVP_TRANSPORT_SHM_MAPPING_H

#include "common/base.h"
#include "transport/transport.h"

#define KVP_HUGE_BYTES (2u << 20) /* of a page that one entry of the middle level maps, where pages are of 4 KiB */

/* kvp_map_shared maps the first len bytes of a memory file: at a multiple of KVP_HUGE_BYTES where that much is mapped,
 * since the kernel maps a huge page of the file whole only there. NULL: see errno. Ends with munmap(addr, len). */
void *kvp_map_shared(int fd, size_t len, int prot);

/* kvp_make_huge populates len bytes of such a mapping by huge pages, len and addr being multiples of KVP_HUGE_BYTES;
 * contents stay, whoever stores to them meanwhile. False, and nothing but some pages is populated, where the kernel
 * cannot, or not now: *is_hopeless_out tells the former. */
bool kvp_make_huge(void *addr, size_t len, bool *is_hopeless_out);

/* kvp_touch_ahead maps len bytes of such a mapping, making what is not there, before somebody stores to them (is_for_writing) or
 * loads. addr is the beginning of a page. False: see errno; less is mapped, and the first touch does the rest. */
bool kvp_touch_ahead(void *addr, size_t len, bool is_for_writing);

/* kvp_memfile_make makes a file of len bytes, zero, sealed, mapped at a multiple of a huge page where it has one, and not inherited by
 * forked children; name is for /proc. False: see errno; the caller drops it all the same. */
bool kvp_memfile_make(const char *name, uint64_t len, kvp_mem_t *mem_out) KVP_MUST_USE;

/* kvp_memfile_drop gives the pages back also where others map the file: what they store from then on is seen by nobody. Legal
 * on the empty value, {.fd = -1}, and leaves that. */
void kvp_memfile_drop(kvp_mem_t *mem);

/* kvp_memfile_adopt maps a file that another process made so, and takes fd in every case, as make leaves its own: false with errno, EINVAL where it is
 * of another length or not sealed. kvp_memfile_leave ends our part and leaves the pages to those who have the file. */
bool kvp_memfile_adopt(int fd, uint64_t len, kvp_mem_t *mem_out) KVP_MUST_USE;
void kvp_memfile_leave(kvp_mem_t *mem);

#endif
