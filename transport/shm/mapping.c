/* SPDX-License-Identifier: Apache-2.0
 * Shared memory files (memfd) and huge pages for them.
 *
 * Design notes.
 * - A page fault costs as much as three copies of 4 KiB: once for the first process that touches a page, and once for
 *   each further process that maps it. With pages of 2 MiB this cost vanishes.
 * - Most systems ship with huge pages for shared memory disabled (shmem_enabled "never"), and only files of a special
 *   tmpfs mount can ask for them. MADV_COLLAPSE works all the same (except with "deny"): it makes one huge page out of
 *   the existing pages of a range, while other processes have the file mapped. At least one page must exist.
 * - While the kernel populates pages it holds the lock of the process's whole address space, and every thread that maps
 *   or unmaps memory waits for the lock, even in code that is not ours. So each call populates little. */
#include "transport/shm/mapping.h"

#include "common/forkguard.h"
#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- memory files */
/* The seals of a memory file. A process with the descriptor must not be able to shrink the file under another
 * process's mapping, nor to add seals that stop the owner's stores. */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static bool
map_file(kvp_mem_t *mem, uint64_t len)
{
    mem->addr = kvp_map_shared(mem->fd, len, PROT_READ | PROT_WRITE);
    if (mem->addr == NULL) return false;
    mem->len = len;
    if (madvise(mem->addr, len, MADV_DONTFORK) != 0) return false;
    /* If the system gives huge pages on request (shmem_enabled "advise"), the first touch of this memory makes them. */
    (void)madvise(mem->addr, len, MADV_HUGEPAGE);
    return true;
}

bool
kvp_memfile_make(const char *name, uint64_t len, kvp_mem_t *mem_out)
{
    *mem_out = (kvp_mem_t){.fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    if (mem_out->fd < 0) return false;
    kvp_forkguard_add(mem_out->fd);
    if (ftruncate(mem_out->fd, (off_t)len) != 0 || fcntl(mem_out->fd, F_ADD_SEALS, SEALS) != 0) return false;
    return map_file(mem_out, len);
}

bool
kvp_memfile_adopt(int fd, uint64_t len, kvp_mem_t *mem_out)
{
    struct stat st;

    *mem_out = (kvp_mem_t){.fd = fd};
    kvp_forkguard_add(fd);
    if (fstat(fd, &st) != 0) return false;
    errno = EINVAL;
    if ((uint64_t)st.st_size != len || (fcntl(fd, F_GET_SEALS) & SEALS) != SEALS) return false;
    return map_file(mem_out, len);
}

void
kvp_memfile_leave(kvp_mem_t *mem)
{
    if (mem->addr != NULL) munmap(mem->addr, mem->len);
    kvp_forkguard_close(mem->fd);
    *mem = (kvp_mem_t){.fd = -1};
}

void
kvp_memfile_drop(kvp_mem_t *mem)
{
    if (mem->addr != NULL && madvise(mem->addr, mem->len, MADV_REMOVE) != 0)
        kvp_log_warn("transport", "cannot punch out old memory: %m");
    kvp_memfile_leave(mem);
}

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* the bytes populated by one madvise call: new small pages of this size take some hundred microseconds */
#define TOUCH_BYTES (256u << 10)

static void *
not_failed(void *addr)
{
    return addr == MAP_FAILED ? NULL : addr;
}

void *
kvp_map_shared(int fd, size_t len, int prot)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *room, *at, *end;

    if (len < KVP_HUGE_BYTES) return not_failed(mmap(NULL, len, prot, MAP_SHARED, fd, 0));
    room = mmap(NULL, len + KVP_HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return NULL;
    at = (uint8_t *)kvp_align_up((uintptr_t)room, KVP_HUGE_BYTES);
    if (mmap(at, len, prot, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        int saved = errno;

        munmap(room, len + KVP_HUGE_BYTES);
        errno = saved;
        return NULL;
    }
    end = (uint8_t *)kvp_align_up((uintptr_t)at + len, page);
    if (at > room) munmap(room, (size_t)(at - room));
    munmap(end, (size_t)(room + len + KVP_HUGE_BYTES - end));
    return at;
}

bool
kvp_make_huge(void *addr, size_t len, bool *is_hopeless_out)
{
    uint8_t *at = addr;

    *is_hopeless_out = false;
    /* Populates one small page of each huge page by madvise, not by a store: other processes may be writing. */
    for (size_t off = 0; off < len; off += KVP_HUGE_BYTES)
        if (madvise(at + off, 1, MADV_POPULATE_WRITE) != 0) return false;
    if (madvise(at, len, MADV_COLLAPSE) == 0) return true;
    *is_hopeless_out = errno == EINVAL;
    return false;
}

bool
kvp_touch_ahead(void *addr, size_t len, bool is_for_writing)
{
    int advice = is_for_writing ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;

    for (size_t off = 0; off < len; off += TOUCH_BYTES)
        if (madvise((uint8_t *)addr + off, kvp_min_u64(TOUCH_BYTES, len - off), advice) != 0) return false;
    return true;
}
