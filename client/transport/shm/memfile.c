/* SPDX-License-Identifier: Apache-2.0
 */
#include "client/transport/shm/memfile.h"

#include "client/transport/shm/mapping.h"
#include "common/forkguard.h"
#include "common/log.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/* Who has the descriptor must not be able to cut the file under another's mapping, nor to add seals that stop the owner's stores. */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

bool
kvp_memfile_make(const char *name, uint64_t len, kvp_mem_t *mem_out)
{
    *mem_out = (kvp_mem_t){.fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    if (mem_out->fd < 0) return false;
    kvp_forkguard_add(mem_out->fd);
    if (ftruncate(mem_out->fd, (off_t)len) != 0 || fcntl(mem_out->fd, F_ADD_SEALS, SEALS) != 0) return false;
    mem_out->addr = kvp_map_shared(mem_out->fd, len, PROT_READ | PROT_WRITE);
    if (mem_out->addr == NULL) return false;
    mem_out->len = len;
    if (madvise(mem_out->addr, len, MADV_DONTFORK) != 0) return false;
    /* Where the system gives huge pages to those who ask, they come with the first touch. */
    (void)madvise(mem_out->addr, len, MADV_HUGEPAGE);
    return true;
}

void
kvp_memfile_drop(kvp_mem_t *mem)
{
    if (mem->addr != NULL) {
        if (madvise(mem->addr, mem->len, MADV_REMOVE) != 0)
            kvp_log_warn("transport", "cannot punch out old memory: %m");
        munmap(mem->addr, mem->len);
    }
    kvp_forkguard_close(mem->fd);
    *mem = (kvp_mem_t){.fd = -1};
}
