/* SPDX-License-Identifier: Apache-2.0
 * The memory of a segment: for each chunk two sealed memfds, payload and metadata, mapped in this process. */
#ifndef KVP_NODE_MEMORY_SEGMENT_H
#define KVP_NODE_MEMORY_SEGMENT_H

#include "node/core/node.h"
#include "transport/transport.h"

#include <pthread.h>
#include <stdatomic.h>

#define KVP_NODE_TPS_MAX 4u
#define KVP_NODE_CHUNK_MIN (64u << 10)
#define KVP_NODE_CHUNK_SMALL (16u << 20)
#define KVP_NODE_CHUNK_USUAL (256u << 20)
#define KVP_NODE_CHUNK_MAX (64ull << 30)
#define KVP_NODE_CHUNKS_FEW 16u
#define KVP_NODE_CHUNKS_USUAL 1024u
#define KVP_NODE_CHUNKS_MAX 65536u

typedef struct {
    kvp_mem_t payload;
    kvp_mem_t meta;
    kvp_chunk_geo_t geo;
    /* the registrations with each serving transport, by index; used by tps.c */
    kvp_mr_t *payload_mrs[KVP_NODE_TPS_MAX];
    kvp_mr_t *meta_mrs[KVP_NODE_TPS_MAX];
    /* the state of the registration with each transport. OK: done; EAGAIN: not done yet; NOTSUP: failed for good */
    _Atomic kvp_err_t mrs_err[KVP_NODE_TPS_MAX];
    char tenant[KVP_TENANT_NAME_MAX + 1]; /* the tenant of the chunk's objects; writers could change the copy in meta */
} kvp_node_chunk_t;

typedef struct {
    uint8_t pool_id[16];
    uint64_t digest_seed;
    uint64_t epoch;
    uint32_t term;
    uint64_t size_bytes; /* the size of the segment: a multiple of 4096, at least KVP_NODE_CHUNK_MIN */
    uint64_t chunk_bytes;
} kvp_node_mem_conf_t;

typedef struct {
    kvp_list_t link; /* link in the populate thread's list `old`, after kvp_node_populate_end */
    kvp_node_mem_conf_t conf;
    uint8_t uuid[16];
    uint32_t chunk_n;
    kvp_node_chunk_t *chunks;
    bool is_kept; /* another process has the files: destroying the struct leaves the pages */
} kvp_node_mem_t;

/* kvp_node_chunk_default returns the default size of a chunk: a sixteenth of the memory, so that sixteen tenants get a
 * chunk each, as a power of two from KVP_NODE_CHUNK_SMALL to KVP_NODE_CHUNK_USUAL. Larger if there would be more than
 * KVP_NODE_CHUNKS_USUAL chunks, because each chunk costs file descriptors and mappings. */
uint64_t kvp_node_chunk_default(uint64_t size_bytes);

/* kvp_node_mem_create makes and maps the files of all chunks. Only the superblocks are populated. NOMEM, or SYS (too
 * many open files, ...), logged. */
kvp_err_t kvp_node_mem_create(const kvp_node_mem_conf_t *conf, kvp_node_mem_t **mem_out) KVP_MUST_USE;

/* kvp_node_mem_adopt maps the files of memory that another process created: the metadata of all chunks, then the
 * payload of all chunks. It compares the superblocks with conf and uuid: PROTO, or VERSION, with *why_out for the log;
 * NOMEM. Owns all file descriptors in every case. */
kvp_err_t kvp_node_mem_adopt(const kvp_node_mem_conf_t *conf, const uint8_t uuid[16], const int *fds,
                             kvp_node_mem_t **mem_out, const char **why_out) KVP_MUST_USE;

/* kvp_node_mem_chunks returns the number of chunks of memory with this conf. */
static inline uint32_t
kvp_node_mem_chunks(const kvp_node_mem_conf_t *conf)
{
    return (uint32_t)((conf->size_bytes - 1) / conf->chunk_bytes + 1);
}

/* kvp_node_mem_destroy frees the memory's pages, unless is_kept, even if a client still maps them: no process sees
 * the client's later stores. Takes long for large memory. The memory must not be registered with a transport. NULL is
 * legal. */
void kvp_node_mem_destroy(kvp_node_mem_t *mem);

/* kvp_node_mem_set_term writes the highest obeyed term into the superblocks. */
void kvp_node_mem_set_term(kvp_node_mem_t *mem, uint32_t term);

/* kvp_node_mem_set_owner records the tenant of the chunk, a name of at most KVP_TENANT_NAME_MAX bytes, in mem and after
 * the superblock in the chunk's metadata. False: there is no such chunk, or the name is invalid. */
bool kvp_node_mem_set_owner(kvp_node_mem_t *mem, uint32_t chunk, const char *tenant);

/* kvp_node_mem_words gives the core access to descriptors. Its argument is a kvp_node_mem_t ** of the control
 * thread. */
extern const kvp_node_words_ops_t kvp_node_mem_words;

typedef struct {
    pthread_t thread;
    bool has_thread;
    bool is_lazy; /* no page is populated in advance */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_stopping; /* the thread must end; guarded by lock */
    kvp_node_mem_t *mem; /* guarded by lock; borrowed: the memory to populate */
    kvp_list_t old; /* the segments to destroy, owned; guarded by lock */
    _Atomic uint64_t populated_bytes; /* how many bytes of mem are populated */
} kvp_node_populate_t;

/* kvp_node_populate_start starts the thread that populates and destroys memory: SYS. kvp_node_populate_stop ends the
 * thread after its current step or destruction, and destroys the memory in its list; legal on a zeroed value. */
kvp_err_t kvp_node_populate_start(kvp_node_populate_t *p, bool is_lazy) KVP_MUST_USE;
void kvp_node_populate_stop(kvp_node_populate_t *p);

/* kvp_node_populate_begin lends mem to the thread until kvp_node_populate_end, which gives the memory to the thread
 * to be destroyed. Neither call waits. */
void kvp_node_populate_begin(kvp_node_populate_t *p, kvp_node_mem_t *mem);
void kvp_node_populate_end(kvp_node_populate_t *p);

#endif
