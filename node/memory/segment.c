/* SPDX-License-Identifier: Apache-2.0
 * Creating, adopting and destroying a segment's memory. PROTOCOL "Segments". */
#include "node/memory/segment.h"

#include "transport/shm/mapping.h"
#include "common/waits.h"
#include "common/clock.h"
#include "common/forkguard.h"
#include "common/log.h"
#include "common/thread.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- populating memory in advance */
/* Design notes.
 * - Only the populate thread destroys a segment's memory while the node runs, so it may work on the memory without
 *   the lock that guards the pointer.
 * - The populate thread has normal priority. During a step the kernel holds locks of a page and of the process's
 *   whole address space. On busy processors a thread of the lowest priority would hold these locks until it is
 *   scheduled, and block every thread that maps memory, for seconds, in an engine that embeds this node. Instead the
 *   thread rests after each step for as long as the step took, which grows with the load. */

#define STEP_BYTES (4u << 20)

/* The progress of populating: the payload of `chunk` from `at` on is next. */
typedef struct {
    const kvp_node_mem_t *mem;
    uint32_t chunk;
    uint64_t at;
    bool has_no_huge; /* the kernel has no huge pages for shared memory */
    bool is_done;
} cursor_t;

/* Populates the whole huge pages of a step. If this fails, the caller populates small pages. */
static void
populate_huge(cursor_t *cur, uint8_t *addr, uint64_t n)
{
    n = n / KVP_HUGE_BYTES * KVP_HUGE_BYTES;
    if (n == 0 || cur->has_no_huge || kvp_make_huge(addr, n, &cur->has_no_huge)) return;
    if (cur->has_no_huge) kvp_log_info("node", "shared memory has no huge pages here: %m");
}

/* populate_step populates the next step and returns the number of populated bytes. */
static uint64_t
populate_step(cursor_t *cur)
{
    const kvp_mem_t *payload = &cur->mem->chunks[cur->chunk].payload;
    uint64_t n = kvp_min_u64(STEP_BYTES, payload->len - cur->at);
    uint8_t *addr = (uint8_t *)payload->addr + cur->at;

    populate_huge(cur, addr, n);
    if (!kvp_touch_ahead(addr, n, true) && errno != EAGAIN && errno != EINTR) {
        /* The kernel is old, or a limit is reached: pages are then populated at their first use. */
        kvp_log_warn("node", "no more memory is populated ahead: %m chunk=%u", cur->chunk);
        cur->is_done = true;
        return 0;
    }
    cur->at += n;
    if (cur->at < payload->len) return n;
    cur->at = 0;
    cur->is_done = ++cur->chunk == cur->mem->chunk_n;
    return n;
}

/* next_old removes one segment to destroy from the list, and returns it or NULL. Called with the lock held. */
static kvp_node_mem_t *
next_old(kvp_node_populate_t *p)
{
    kvp_node_mem_t *old;

    if (kvp_list_is_empty(&p->old)) return NULL;
    old = kvp_list_first(&p->old, kvp_node_mem_t, link);
    kvp_list_del(&old->link);
    return old;
}

static void *
populate_main(void *arg)
{
    kvp_node_populate_t *p = arg;
    cursor_t cur = {.is_done = true};
    uint64_t rested_ns = 0;

    pthread_mutex_lock(&p->lock);
    while (!p->is_stopping) {
        kvp_node_mem_t *old = next_old(p);
        uint64_t now_ns = kvp_now_ns(), n = 0;

        if (p->mem != cur.mem) cur = (cursor_t){.mem = p->mem, .is_done = p->mem == NULL || p->is_lazy};
        if (old == NULL && cur.is_done) {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        if (old == NULL && now_ns < rested_ns) {
            kvp_cond_wait_until(&p->changed, &p->lock, rested_ns);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        if (old != NULL) {
            kvp_node_mem_destroy(old);
        } else {
            n = populate_step(&cur);
            rested_ns = 2 * kvp_now_ns() - now_ns;
        }
        pthread_mutex_lock(&p->lock);
        if (old != NULL && old == cur.mem)
            cur = (cursor_t){.is_done = true}; /* reset the cursor: the struct of new memory may get the same address */
        else if (cur.mem == p->mem)
            p->populated_bytes += n;
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

kvp_err_t
kvp_node_populate_start(kvp_node_populate_t *p, bool is_lazy)
{
    p->is_lazy = is_lazy;
    pthread_mutex_init(&p->lock, NULL);
    kvp_cond_init(&p->changed);
    kvp_list_init(&p->old);
    if (kvp_thread_start(&p->thread, "kvp-populate", populate_main, p) != KVP_OK) return KVP_SYS;
    p->has_thread = true;
    return KVP_OK;
}

void
kvp_node_populate_stop(kvp_node_populate_t *p)
{
    kvp_node_mem_t *old;

    if (!p->has_thread) return;
    pthread_mutex_lock(&p->lock);
    p->is_stopping = true;
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    while ((old = next_old(p)) != NULL)
        kvp_node_mem_destroy(old);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    p->has_thread = false;
}

static void
close_fd(kvp_mem_t *mem)
{
    kvp_forkguard_close(mem->fd);
    mem->fd = -1;
}

void
kvp_node_populate_begin(kvp_node_populate_t *p, kvp_node_mem_t *mem)
{
    pthread_mutex_lock(&p->lock);
    p->mem = mem;
    atomic_store(&p->populated_bytes, 0);
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

void
kvp_node_populate_end(kvp_node_populate_t *p)
{
    /* The file descriptors are closed at once: the next memory needs as many, and a process may have few. */
    for (uint32_t i = 0; i < p->mem->chunk_n; i++) {
        close_fd(&p->mem->chunks[i].payload);
        close_fd(&p->mem->chunks[i].meta);
    }
    pthread_mutex_lock(&p->lock);
    kvp_list_add_tail(&p->old, &p->mem->link);
    p->mem = NULL;
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

uint64_t
kvp_node_chunk_default(uint64_t size_bytes)
{
    uint64_t chunk = KVP_NODE_CHUNK_SMALL;

    while (chunk < KVP_NODE_CHUNK_USUAL && size_bytes / chunk >= 2 * KVP_NODE_CHUNKS_FEW)
        chunk *= 2;
    while (chunk < KVP_NODE_CHUNK_MAX && (size_bytes - 1) / chunk >= KVP_NODE_CHUNKS_USUAL)
        chunk *= 2;
    return chunk;
}

static const kvp_mem_t no_mem = {.fd = -1};

static void
write_superblock(const kvp_node_mem_t *mem, uint32_t index)
{
    const kvp_node_chunk_t *c = &mem->chunks[index];
    kvp_superblock_t sb = {
        .magic = KVP_SB_MAGIC,
        .version = KVP_SB_VERSION,
        .chunk = index,
        .digest_seed = mem->conf.digest_seed,
        .epoch = mem->conf.epoch,
        .term = mem->conf.term,
        .chunk_bytes = c->payload.len,
        .slots_max = c->geo.slots_max,
        .keys_off = c->geo.keys_off,
        .long_keys_off = c->geo.long_keys_off,
        .meta_bytes = c->geo.meta_bytes,
    };

    memcpy(sb.pool_id, mem->conf.pool_id, sizeof sb.pool_id);
    memcpy(sb.segment_uuid, mem->uuid, sizeof sb.segment_uuid);
    kvp_sb_seal(&sb);
    memcpy(c->meta.addr, &sb, sizeof sb);
}

static uint64_t
bytes_of(const kvp_node_mem_t *mem, uint32_t index)
{
    return kvp_min_u64(mem->conf.chunk_bytes, mem->conf.size_bytes - (uint64_t)index * mem->conf.chunk_bytes);
}

static bool
make_chunk(kvp_node_mem_t *mem, uint32_t index)
{
    kvp_node_chunk_t *c = &mem->chunks[index];
    uint64_t bytes = bytes_of(mem, index);

    kvp_chunk_geo(bytes, &c->geo);
    if (!kvp_memfile_make("kvpool-payload", bytes, &c->payload)) return false;
    if (!kvp_memfile_make("kvpool-meta", c->geo.meta_bytes, &c->meta)) return false;
    write_superblock(mem, index);
    return true;
}

/* Allocates the struct for a segment without files. NULL: no memory. */
static kvp_node_mem_t *
mem_alloc(const kvp_node_mem_conf_t *conf)
{
    kvp_node_mem_t *mem = calloc(1, sizeof *mem);

    if (mem == NULL) return NULL;
    mem->conf = *conf;
    kvp_list_init(&mem->link);
    mem->chunk_n = kvp_node_mem_chunks(conf);
    mem->chunks = calloc(mem->chunk_n, sizeof *mem->chunks);
    if (mem->chunks == NULL) {
        free(mem);
        return NULL;
    }
    for (uint32_t i = 0; i < mem->chunk_n; i++)
        mem->chunks[i].payload = mem->chunks[i].meta = no_mem;
    return mem;
}

kvp_err_t
kvp_node_mem_create(const kvp_node_mem_conf_t *conf, kvp_node_mem_t **mem_out)
{
    kvp_node_mem_t *mem = mem_alloc(conf);
    kvp_err_t err = KVP_NOMEM;

    if (mem == NULL) return KVP_NOMEM;
    kvp_random_bytes(mem->uuid, sizeof mem->uuid);
    for (uint32_t i = 0; i < mem->chunk_n; i++) {
        if (make_chunk(mem, i)) continue;
        kvp_log_error("node", "cannot make chunk %u of %u: %m", i, mem->chunk_n);
        err = errno == ENOMEM ? KVP_NOMEM : KVP_SYS;
        goto fail;
    }
    *mem_out = mem;
    return KVP_OK;
fail:
    kvp_node_mem_destroy(mem);
    return err;
}

/* Checks a superblock like untrusted input, because clients with write access may have changed it. Returns NULL, or a
 * text about the error. */
static const char *
check_superblock(const kvp_node_mem_t *mem, uint32_t index, kvp_err_t *err_out)
{
    const kvp_node_chunk_t *c = &mem->chunks[index];
    uint8_t copy[sizeof(kvp_superblock_t)];
    kvp_superblock_t sb;

    memcpy(copy, c->meta.addr, sizeof copy);
    *err_out = kvp_sb_verify(copy, sizeof copy, &sb);
    if (*err_out == KVP_VERSION) return "a superblock has another version";
    if (*err_out != KVP_OK) return "a superblock is broken";
    *err_out = KVP_PROTO;
    if (memcmp(sb.pool_id, mem->conf.pool_id, sizeof sb.pool_id) != 0 || sb.digest_seed != mem->conf.digest_seed)
        return "a superblock is of another pool";
    if (memcmp(sb.segment_uuid, mem->uuid, sizeof sb.segment_uuid) != 0 || sb.epoch != mem->conf.epoch ||
        sb.chunk != index || sb.chunk_bytes != c->payload.len || sb.meta_bytes != c->meta.len)
        return "a superblock is of other memory";
    *err_out = KVP_OK;
    return NULL;
}

/* adopt_chunk maps the two files of a chunk, and takes both descriptors. Returns NULL, or a text about the error. */
static const char *
adopt_chunk(kvp_node_mem_t *mem, uint32_t index, const int *fds, kvp_err_t *err_out)
{
    kvp_node_chunk_t *c = &mem->chunks[index];
    uint64_t bytes = bytes_of(mem, index);
    bool is_there;

    kvp_chunk_geo(bytes, &c->geo);
    is_there = kvp_memfile_adopt(fds[index], c->geo.meta_bytes, &c->meta);
    is_there &= kvp_memfile_adopt(fds[mem->chunk_n + index], bytes, &c->payload);
    *err_out = KVP_PROTO;
    return is_there ? check_superblock(mem, index, err_out)
                    : "a file has another size or no seals, or cannot be mapped";
}

kvp_err_t
kvp_node_mem_adopt(const kvp_node_mem_conf_t *conf, const uint8_t uuid[16], const int *fds, kvp_node_mem_t **mem_out,
                   const char **why_out)
{
    kvp_node_mem_t *mem = mem_alloc(conf);
    kvp_err_t err = KVP_NOMEM, first = KVP_OK;

    *why_out = mem == NULL ? "no memory" : NULL;
    for (uint32_t i = 0; mem == NULL && i < 2 * kvp_node_mem_chunks(conf); i++)
        close(fds[i]);
    if (mem == NULL) return KVP_NOMEM;
    memcpy(mem->uuid, uuid, sizeof mem->uuid);
    for (uint32_t i = 0; i < mem->chunk_n; i++) {
        const char *why = adopt_chunk(mem, i, fds, &err);

        if (*why_out == NULL) *why_out = why;
        if (first == KVP_OK) first = err;
    }
    if (first == KVP_OK) {
        *mem_out = mem;
        return KVP_OK;
    }
    kvp_node_mem_destroy(mem);
    return first;
}

void
kvp_node_mem_destroy(kvp_node_mem_t *mem)
{
    void (*end)(kvp_mem_t *) = mem != NULL && mem->is_kept ? kvp_memfile_leave : kvp_memfile_drop;

    if (mem == NULL) return;
    /* Metadata files are freed first, so that a reader with a mapping finds no SEALED word of freed payload. */
    for (uint32_t i = 0; mem->chunks != NULL && i < mem->chunk_n; i++)
        end(&mem->chunks[i].meta);
    for (uint32_t i = 0; mem->chunks != NULL && i < mem->chunk_n; i++)
        end(&mem->chunks[i].payload);
    free(mem->chunks);
    free(mem);
}

static uint64_t *
word_at(void *arg, uint32_t chunk, uint32_t slot)
{
    kvp_node_mem_t *const *mem = arg;

    return (uint64_t *)((uint8_t *)(*mem)->chunks[chunk].meta.addr + kvp_desc_off(slot));
}

static uint64_t
word_load(void *arg, uint32_t chunk, uint32_t slot)
{
    return __atomic_load_n(word_at(arg, chunk, slot), __ATOMIC_ACQUIRE);
}

static bool
word_cas(void *arg, uint32_t chunk, uint32_t slot, uint64_t expect, uint64_t next)
{
    return __atomic_compare_exchange_n(word_at(arg, chunk, slot), &expect, next, false, __ATOMIC_SEQ_CST,
                                       __ATOMIC_RELAXED);
}

static void
word_fence(void *arg)
{
    (void)arg;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* Returns the number of slots up to the last slot ever written. Pages of the metadata that were never stored to are
 * holes of the file: SEEK_DATA finds them without using memory, which loading from them would. */
static uint32_t
slots_limit(void *arg, uint32_t chunk)
{
    kvp_node_mem_t *const *mem = arg;
    const kvp_node_chunk_t *c = &(*mem)->chunks[chunk];
    off_t end = 0, at = lseek(c->meta.fd, KVP_SB_BYTES, SEEK_DATA);

    while (at >= 0 && (uint64_t)at < c->geo.keys_off) {
        end = lseek(c->meta.fd, at, SEEK_HOLE);
        if (end < 0) return c->geo.slots_max;
        at = lseek(c->meta.fd, end, SEEK_DATA);
    }
    if (at < 0 && errno != ENXIO) return c->geo.slots_max; /* the file system has no SEEK_DATA: scan all slots */
    if (end <= (off_t)KVP_SB_BYTES) return 0;
    return (uint32_t)kvp_min_u64(((uint64_t)end - KVP_SB_BYTES) / KVP_DESC_BYTES, c->geo.slots_max);
}

static bool
read_desc(void *arg, uint32_t chunk, uint32_t slot, kvp_desc_t *desc_out, uint8_t *key_out)
{
    kvp_node_mem_t *const *mem = arg;
    const kvp_node_chunk_t *c = &(*mem)->chunks[chunk];
    const uint8_t *meta = c->meta.addr;
    kvp_desc_t copy; /* the descriptor is checked as a copy, which no writer can change after the check */

    memcpy(&copy, meta + kvp_desc_off(slot), sizeof copy);
    if (kvp_desc_verify(&copy, sizeof copy, &c->geo, c->payload.len, desc_out) != KVP_OK) return false;
    memcpy(key_out, meta + (uint64_t)desc_out->key_off * 64, desc_out->key_len);
    return true;
}

void
kvp_node_mem_set_term(kvp_node_mem_t *mem, uint32_t term)
{
    if (mem->conf.term == term) return;
    mem->conf.term = term;
    for (uint32_t i = 0; i < mem->chunk_n; i++)
        write_superblock(mem, i);
}

bool
kvp_node_mem_set_owner(kvp_node_mem_t *mem, uint32_t chunk, const char *tenant)
{
    kvp_chunk_owner_t owner = {.check = 0};

    if (chunk >= mem->chunk_n || strlen(tenant) > KVP_TENANT_NAME_MAX) return false;
    memcpy(owner.tenant, tenant, strlen(tenant));
    owner.check = kvp_sum(owner.tenant, sizeof owner.tenant);
    memcpy((uint8_t *)mem->chunks[chunk].meta.addr + KVP_SB_OWNER_OFF, &owner, sizeof owner);
    memcpy(mem->chunks[chunk].tenant, owner.tenant, sizeof mem->chunks[chunk].tenant);
    return true;
}

const kvp_node_words_ops_t kvp_node_mem_words = {
    .load = word_load,
    .cas = word_cas,
    .fence = word_fence,
    .limit = slots_limit,
    .read = read_desc,
};
