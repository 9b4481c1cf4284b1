/* SPDX-License-Identifier: Apache-2.0
 * kvpool.h - the C API of the pool. A program puts, gets and looks up objects by key. The library
 * moves the bytes between the program's memory and the memory of the pool, without a copy in
 * between.
 *
 * A key has 1 to 1024 bytes of any value. An object has 1 byte up to the pool's chunk size. An
 * object does not change after its put; an upsert replaces the whole object.
 *
 * Unless a function says otherwise, these rules hold for all functions:
 *   Blocking: the call waits for the pool until its deadline, and returns at most 20 ms of runnable
 *     time after it.
 *   Threads: any thread may call at any time, and many threads may share one handle.
 *   Ownership: the library borrows all pointers until the call returns. After the return, no
 *     transfer touches the buffers of the call. After a failed get, the contents of the destination
 *     are undefined.
 *   Errors: the call returns 0 (KVPOOL_OK) or a negative number of err.h. Each function lists its
 *     special errors. Every function may also return INVALID (wrong arguments), CLOSED (after
 *     kvpool_close), FORKED (below) and NOMEM; functions that ask the master may return
 *     UNREACHABLE, DISCONNECTED, VERSION and DEADLINE. Results go to the pointers whose names end
 *     in _out, which the library sets only on success.
 *
 * A handle does not survive fork. In the child every call returns FORKED, and kvpool_free only
 * frees memory.
 */
#ifndef KVPOOL_H
#define KVPOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if __has_include("common/err.h")
#include "common/err.h"
#else
#include <kvpool/err.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__) && !defined(KVPOOL_STATIC)
#define KVPOOL_EXPORT __attribute__((visibility("default")))
#else
#define KVPOOL_EXPORT
#endif

/* Bytes of the longest key. */
#define KVPOOL_KEY_MAX 1024
/* Most keys of one look-up. The library splits larger batches of the other calls. */
#define KVPOOL_BATCH_MAX 8192

typedef struct kvpool kvpool_t;

/* ---- Handles */

/* Values of kvpool_conf_t.verify: which bytes a handle verifies by their checksum after it has read
 * them. */
enum {
    /* Verifies bytes that came by TCP, and by RDMA if the kernel plays the adapter (soft RoCE). */
    KVPOOL_VERIFY_AUTO = 0,
    /* Verifies the bytes of every object with a checksum, on every transport. Environment:
     * KVPOOL_VERIFY=payload. */
    KVPOOL_VERIFY_PAYLOAD = 1,
    /* Verifies as AUTO, but not bytes from soft RoCE. Environment: KVPOOL_VERIFY=adapters. */
    KVPOOL_VERIFY_ADAPTERS = 2,
};

/* The configuration of a handle. Zero or NULL in a member means its default. The caller sets
 * struct_size to sizeof(kvpool_conf_t). The library copies all strings. */
typedef struct {
    size_t struct_size;
    /* The masters: "HOST:PORT[,HOST:PORT]", at most 16, of which the library finds the leader; or
     * "etcd://HOST:PORT[;HOST:PORT]", members of the etcd that knows the masters of `cluster`
     * (NOTSUP without libcurl.so.4). Default: $KVPOOL_MASTER, else 127.0.0.1:50051. */
    const char *master;
    /* The name of this client or embedded node, at most 128 bytes. Default: the program's name and
     * process id; of an embedded node with a certificate the node's name in it. */
    const char *name;
    /* The id of this client's host. Processes with two host ids on one machine count as two hosts.
     * Default: the machine's id. */
    const char *host_id;
    /* The transports that may be used, in order of preference, for example "shm,rdma,tcp". A
     * transport that is named but does not work here is an error (NOTSUP).
     * docs/operations/options.md describes the choice of RDMA devices. Default: $KVPOOL_TRANSPORTS,
     * else all. */
    const char *transports;
    /* The deadline of calls without one, in milliseconds. Default: 5000. */
    uint32_t deadline_ms;
    /* KVPOOL_VERIFY_*. */
    uint32_t verify;
    /* Above 0: an embedded node lends so many bytes to the pool while the handle is open. */
    uint64_t memory_bytes;
    /* Embedded node: the address for peers, "HOST:PORT". The node serves by all transports that
     * work here. It serves by RDMA only if HOST is the address of an RDMA device; otherwise a named
     * "rdma" is an error. Default: 127.0.0.1:0. */
    const char *listen;
    /* Embedded node: bytes of a chunk of its memory; no object is larger. Default: by memory_bytes. */
    uint64_t chunk_bytes;
    /* The owner of the keys, at most 128 bytes. Equal keys of two tenants name two objects. NULL,
     * "" and "default" name the default tenant. INVALID: the name has the same hash as another
     * tenant of the pool. */
    const char *tenant;
    /* How many object locations the handle caches, about 140 bytes each. A get from a cached location
     * sends no message to the master. 0 = 65536, UINT32_MAX = none. */
    uint32_t locations;
    /* Output, if not NULL: one sentence that names the fault in the configuration or on this
     * machine, or "". The library cuts the text to detail_cap bytes with the terminator. If NULL,
     * the library logs the sentence. */
    char *detail;
    size_t detail_cap;
    /* How long calls wait, all together, for a master that is away or silent, in milliseconds.
     * After a wait in vain, later calls return at once with the same error until the library finds
     * a master. Removals, and calls with their own deadline_ms, use their own time. With several
     * masters the wait is at least 10 s, the time of a fail-over. 0 = $KVPOOL_MASTER_WAIT ("1s"),
     * else every call waits; UINT32_MAX = every call waits. */
    uint32_t master_wait_ms;
    /* Embedded node: its SSDs, "DIR:SIZE" for each, at most 16. The node writes evicted objects to
     * a file of that size in the directory. The next node with the same name finds them again, so
     * the name must be given. docs/operations/install.md describes sizes. */
    const char *const *ssd;
    size_t ssd_n;
    /* Embedded node: bytes that may be written to the SSDs in a day. 0 = no bound. */
    uint64_t ssd_writes;
    /* The handle only serves kvpool_stat and kvpool_list, but from a master that does not lead,
     * too. Other calls return NOT_LEADER. An embedded node is not possible. */
    bool state_only;
    /* With "etcd://": the --cluster of the masters. Default: $KVPOOL_CLUSTER, else
     * $MC_STORE_CLUSTER_ID, else "kvpool". */
    const char *cluster;
    /* Embedded node: kvpool_close first moves the node's objects to other nodes, for at most
     * this many milliseconds. Objects that have not moved by then are lost, as without a drain. 0 = the
     * time in $KVPOOL_DRAIN_ON_CLOSE (such as "10s"), else no object is moved. */
    uint32_t drain_ms;
    /* The handle only checks the pool. Its puts use only free memory: instead of evicting objects or
     * waiting, they return NO_SPACE. The master does not count its gets, misses and refused puts. */
    bool probes;
} kvpool_conf_t;

/* kvpool_open connects to the pool and, with memory_bytes, mounts an embedded node. conf may be
 * NULL.
 *   Blocking: until deadline_ms of conf, in which the embedded node also reads the index of its
 *     SSDs.
 *   Ownership: the caller frees *pool_out with kvpool_free.
 *   Errors: NOTSUP, SEGMENT_EXISTS (a living node has this name), SYS. */
KVPOOL_EXPORT int kvpool_open(const kvpool_conf_t *conf, kvpool_t **pool_out);

/* kvpool_close ends the session, all views and the embedded node. Calls of other threads return
 * CLOSED first. Later calls on the handle, another kvpool_close included, return CLOSED.
 *   Blocking: about one second at most, and drain_ms of the configuration before that.
 *   Ownership: the handle stays a valid pointer until kvpool_free. */
KVPOOL_EXPORT int kvpool_close(kvpool_t *pool);

/* kvpool_free closes the handle if it is open, and frees it. NULL is ignored.
 *   Blocking: as kvpool_close.
 *   Threads: no other thread may be in a call on the handle. */
KVPOOL_EXPORT void kvpool_free(kvpool_t *pool);

/* kvpool_why_unreachable writes one sentence about the last failed attempt to reach the master:
 * refused, timed out, a name that does not resolve, or no leader. Without a failed attempt it
 * writes "". The text is cut to cap bytes with the terminator. kvpool_open leaves the same sentence
 * in conf.detail; a call that returns UNREACHABLE leaves it in opts.detail.
 *   Blocking: does not block. */
KVPOOL_EXPORT int kvpool_why_unreachable(kvpool_t *pool, char *text, size_t cap);

/* ---- Memory of the program */

/* kvpool_register makes [addr, addr + len) usable for batch calls. kvpool_unregister ends the
 * registration of the range that starts at addr. If the process uses an RDMA device, the library
 * pins the memory, large ranges in the background. Memory that cannot be pinned (ulimit -l) is
 * moved through copies. The range may be memory of one GPU (CUDA). The library then registers it
 * with the RDMA devices before kvpool_register returns, or moves its bytes through bounce buffers.
 * Batch and single calls take addresses in registered GPU memory, alone or beside host memory.
 * Before a put the caller waits for the streams that write to the memory. Work that the caller
 * starts after a get sees the bytes of the get.
 *   Blocking: kvpool_register for the registration of GPU memory; kvpool_unregister for the calls
 *     that use the range.
 *   Ownership: the caller keeps the range mapped until kvpool_unregister, and a CUDA context alive
 *     until kvpool_free.
 *   Errors: INVALID (not mapped, or overlaps a registered range), NOT_REGISTERED (no range starts
 *     at addr). */
KVPOOL_EXPORT int kvpool_register(kvpool_t *pool, void *addr, size_t len);
KVPOOL_EXPORT int kvpool_unregister(kvpool_t *pool, void *addr);

/* One piece of kvpool_copy. len counts bytes. */
typedef struct {
    void *dst;
    const void *src;
    size_t len;
} kvpool_copy_t;

/* kvpool_copy copies n pieces inside this process, between registered memory of the host and of
 * GPUs. The pieces have no order. dst and src of a piece must not overlap, and each must lie in one
 * registered range. kvpool_copy does not ask the pool.
 *   Blocking: as long as the copies take; no deadline.
 *   Errors: results[i] is the error of piece i: NOT_REGISTERED, INVALID (NULL or empty), NOTSUP
 *     (from GPU to GPU), SYS (the GPU failed). kvpool_copy returns OK after it has tried all
 *     pieces. After another error each piece may have been copied or not. */
KVPOOL_EXPORT int kvpool_copy(kvpool_t *pool, const kvpool_copy_t *pieces, size_t n, int *results);

/* ---- Options of a call */

/* The place of an object in a sequence of blocks. The pool stores the lineage beside the object and
 * does not interpret it. */
typedef struct {
    /* The hash of all blocks up to and including this block. */
    uint64_t sequence;
    /* The hash of all blocks before this block. */
    uint64_t parent;
    /* The number of blocks before this block. */
    uint32_t depth;
} kvpool_lineage_t;

/* Flags of kvpool_opts_t. Each comment names the calls that take the flag. */
enum {
    /* remove: also removes objects that readers or reservations hold. */
    KVPOOL_FORCE = 1,
    /* put: replaces the object of a committed key. */
    KVPOOL_UPSERT = 2,
    /* put: the object is evicted after all unpinned objects, within the pool's budget for soft
     * pins. */
    KVPOOL_PIN_SOFT = 4,
    /* put: the object is never evicted, only removed. A restart of the master keeps the pin. */
    KVPOOL_PIN_HARD = 8,
    /* remove, upsert: the call returns when no reader can get the old object any more. */
    KVPOOL_WAIT = 16,
    /* remove: returns HELD also while a recent kvpool_exists protects the key. */
    KVPOOL_HEED_PROBES = 32,
    /* get: asks the master although the location is cached. */
    KVPOOL_FRESH = 64,
    /* lookup, longest_prefix: the keys are ids of groups. */
    KVPOOL_GROUPS = 128,
    /* all calls: conf.master_wait_ms bounds the call although the call has a deadline_ms. */
    KVPOOL_SOON = 256,
    /* locate: also returns lineages. */
    KVPOOL_LINEAGES = 512,
    /* lookup, longest_prefix: starts to load reserved objects from SSD into memory. */
    KVPOOL_PREFETCH = 1024,
    /* put: returns ALREADY instead of OK if the key was committed before the call. */
    KVPOOL_REPORT_ALREADY = 2048,
    /* put, upsert, get, lookup, longest_prefix, bump: the call is for the epoch `epoch` of the
     * tenant. STALE if the tenant has another epoch. A get asks the master, as with
     * KVPOOL_FRESH. */
    KVPOOL_EPOCH = 4096,
    /* lookup, longest_prefix: `present` also has the places of the objects. */
    KVPOOL_PLACES = 8192,
    /* explain: the answer covers every tenant that has the object, or a trace of it. stat: with
     * KVPOOL_CURVES it has the curves of all tenants that have one. */
    KVPOOL_ALL_TENANTS = 16384,
    /* stat: the answer also has "curves": the hit ratios that caches of other sizes would have. */
    KVPOOL_CURVES = 32768,
    /* get: the master makes a copy of the object on a node of this host, if one has room. The call
     * does not wait for the copy, and asks the master, as with KVPOOL_FRESH. The copy is dropped after
     * a minute (six times the master's --hot-window) without a read with this flag, if reads without it
     * were few as well. With --hot-rate 0 the master makes no copy. */
    KVPOOL_KEEP_HERE = 65536,
};

/* The options of one call. A NULL pointer to them means all defaults. The caller sets struct_size
 * to sizeof(kvpool_opts_t). */
typedef struct {
    size_t struct_size;
    /* The time limit of the call in milliseconds. 0 = deadline_ms of the handle. */
    uint32_t deadline_ms;
    /* KVPOOL_FORCE and the others above. */
    uint32_t flags;
    /* put: the number of copies, at most 8. The copies lie on different hosts, or on different
     * nodes if there are fewer hosts. 0 = 1. */
    uint32_t replicas;
    /* Output, if not NULL: one sentence with the reason of the master's refusal, or with the reason
     * why no master is reached, or "". Of a batch, the last such sentence. The library cuts the
     * text to detail_cap bytes with the terminator. */
    char *detail;
    size_t detail_cap;
    /* A `segment_id` of kvpool_stat. put: store in this segment only, else return NO_SPACE. remove:
     * remove only the copy in this segment. 0 = any segment, all copies. */
    uint32_t segment;
    /* kvpool_put and kvpool_upsert: the lineage of the object, or NULL. Items of a batch have their
     * own. */
    const kvpool_lineage_t *lineage;
    /* With KVPOOL_EPOCH: the tenant's epoch, as kvpool_bump or a look-up has returned it. */
    uint32_t epoch;
    /* put: `segment_id`s of the prefer_n segments, at most 8, that get a copy each if they take puts
     * and have room. Other segments get the remaining copies. */
    uint32_t prefer_n;
    const uint32_t *prefer;
} kvpool_opts_t;

/* ---- Single objects: host memory need not be registered, GPU memory must be
 *
 * Cached locations. A get caches the location of the object, and the next get of the key reads
 * there without a message. So a get may return the old object after another client's remove or
 * upsert has returned. Such a get is possible only if a node did not answer the master in time, and
 * only for the location lease of the pool (1 s), or for the location grace while the master is
 * lost. KVPOOL_WAIT in the remove or upsert, and KVPOOL_FRESH in the get, exclude it. */

/* kvpool_put stores an object. A put of a committed key returns OK and leaves the old object in
 * place; with KVPOOL_REPORT_ALREADY it returns ALREADY.
 *   Errors: IN_PROGRESS (other live clients were putting the key at each of the library's attempts,
 *     for 250 ms), NO_SPACE, RETRY_AFTER, TOO_LARGE, BAD_KEY, STALE (KVPOOL_EPOCH: the tenant has
 *     another epoch). A stopped client loses its unfinished put after 1.25 s to the next put. */
KVPOOL_EXPORT int kvpool_put(kvpool_t *pool, const void *key, size_t key_len, const void *value, size_t len,
                             const kvpool_opts_t *opts);

/* kvpool_upsert stores an object and replaces the old one, even if readers hold it; their views
 * become STALE. If the pool has only the space of the old object, the library drops the old object
 * first. Other clients may read the new object shortly before kvpool_upsert returns. If the master
 * dies in that moment, the old object may be readable again until the library has repeated the
 * upsert at the next master.
 *   Errors: as kvpool_put. After NO_SPACE or DEADLINE the key may have no object. NOTSUP: the
 *     master is too old. */
KVPOOL_EXPORT int kvpool_upsert(kvpool_t *pool, const void *key, size_t key_len, const void *value, size_t len,
                                const kvpool_opts_t *opts);

/* kvpool_get copies the whole object to buf. *len_out is the length of the object, also after
 * BUFFER_SMALL.
 *   Errors: NOT_FOUND, NODE_LOST, BUFFER_SMALL, STALE (the object was replaced during the read more
 *     than once; KVPOOL_EPOCH: the tenant has another epoch), NO_SPACE (the object is only on SSD,
 *     and all memory of its node is held, pinned or being written until the deadline). */
KVPOOL_EXPORT int kvpool_get(kvpool_t *pool, const void *key, size_t key_len, void *buf, size_t cap, size_t *len_out,
                             const kvpool_opts_t *opts);

/* kvpool_exists sets *exists_out to 1 or 0. The call protects an existing key like
 * kvpool_batch_is_exist. */
KVPOOL_EXPORT int kvpool_exists(kvpool_t *pool, const void *key, size_t key_len, int *exists_out,
                                const kvpool_opts_t *opts);

/* kvpool_size sets *len_out to the length of the object in bytes.
 *   Errors: NOT_FOUND. */
KVPOOL_EXPORT int kvpool_size(kvpool_t *pool, const void *key, size_t key_len, size_t *len_out,
                              const kvpool_opts_t *opts);

/* kvpool_remove removes an object.
 *   Blocking: without KVPOOL_FORCE up to 2 s after the start of a new master, which does not know
 *     yet what clients hold.
 *   Errors: NOT_FOUND; HELD without KVPOOL_FORCE (a reader or a reservation holds the object; with
 *     KVPOOL_HEED_PROBES also while a recent kvpool_exists protects the key). */
KVPOOL_EXPORT int kvpool_remove(kvpool_t *pool, const void *key, size_t key_len, const kvpool_opts_t *opts);

/* ---- Views */

/* A view shows the bytes of an object in place, in memory shared with a node of this host. The pool
 * does not evict an object with a view, even if the session or the master is lost, with the bounds
 * of a reservation (kvpool_lookup_t). A forced remove or an upsert may change the bytes during the
 * view. Therefore the bytes that the caller has read are valid only if kvpool_view_release returns
 * OK. A view keeps the opened memory of the node mapped, even if the node is lost. */
typedef struct {
    /* Read-only, until kvpool_view_release or kvpool_close. */
    const void *data;
    size_t len;
    /* Of the library. NULL = no view. */
    void *handle;
} kvpool_view_t;

/* kvpool_view opens a view.
 *   Ownership: the caller ends the view with kvpool_view_release.
 *   Errors: NOT_FOUND, NODE_LOST and STALE as kvpool_get; NOTSUP (no copy lies in shared memory of
 *     this host); LIMIT (more than 16384 views and gets at a time). */
KVPOOL_EXPORT int kvpool_view(kvpool_t *pool, const void *key, size_t key_len, const kvpool_opts_t *opts,
                              kvpool_view_t *view_out);

/* kvpool_view_release ends a view, and clears *view, whatever it returns.
 *   Blocking: does not wait for the pool.
 *   Errors: STALE (the object was replaced or removed, or no session of the handle holds it any
 *     more: discard the bytes), INVALID (the view is empty), CLOSED (kvpool_close has ended the
 *     view and unmapped its memory). */
KVPOOL_EXPORT int kvpool_view_release(kvpool_t *pool, kvpool_view_t *view);

/* ---- Batches */

typedef struct {
    const void *data;
    size_t len;
} kvpool_key_t;

typedef struct {
    void *addr;
    size_t len;
} kvpool_iov_t;

/* The group of an object. The pool evicts the members of a group together. With members above 0 the
 * pool also hides the objects of the group until so many members are put. */
typedef struct {
    /* 1 to 1024 bytes. */
    kvpool_key_t id;
    /* The size of the group, at most 4096. 0 = unknown: members are visible at once. */
    uint32_t members;
    /* The index of this object in the group, below members. */
    uint32_t member;
} kvpool_group_t;

/* One object of a batch. The object is the concatenation of the pieces of iov: 1 to 1024 pieces,
 * none empty, all in registered memory. For example, the blocks of 61 layers are one object. */
typedef struct {
    kvpool_key_t key;
    const kvpool_iov_t *iov;
    size_t iov_n;
    /* Output of a get: the length of the object in bytes. */
    size_t len;
    /* put: the group, or NULL. */
    const kvpool_group_t *group;
    /* put: the lineage, or NULL. */
    const kvpool_lineage_t *lineage;
} kvpool_item_t;

/* kvpool_batch_put and kvpool_batch_get move n objects; n may be 0. If a batch of puts has a key
 * twice, the first object that can be put stays; of upserts, the last one.
 *   Ownership: the memory of the pieces belongs to the library until the call returns.
 *   Errors: results[i] is the error of item i, as for kvpool_put and kvpool_get, and NOT_REGISTERED
 *     (a piece is not in registered memory) or BUFFER_SMALL (the pieces are shorter than the
 *     object). The call returns OK after it has tried all items. After another error the call has
 *     moved nothing. With KVPOOL_EPOCH a large batch may be done in part when the epoch ends: the
 *     items that the master is asked for after that are STALE. */
KVPOOL_EXPORT int kvpool_batch_put(kvpool_t *pool, kvpool_item_t *items, size_t n, const kvpool_opts_t *opts,
                                   int *results);
KVPOOL_EXPORT int kvpool_batch_get(kvpool_t *pool, kvpool_item_t *items, size_t n, const kvpool_opts_t *opts,
                                   int *results);

/* kvpool_batch_is_exist sets results[i] to 1 or 0, or to the negative error of key i. The call also
 * protects the found keys: for the lease time of the pool, a protected key is evicted only if
 * nothing else can be. At most a quarter of the pool is protected; of a larger batch, its first
 * keys. The protection of a key ends when the key is read or put, and at the latest one lease time
 * after its first question. */
KVPOOL_EXPORT int kvpool_batch_is_exist(kvpool_t *pool, const kvpool_key_t *keys, size_t n, const kvpool_opts_t *opts,
                                        int *results);

/* kvpool_batch_remove removes n keys, with one message to the master for each 512; n may be 0.
 *   Errors: results[i] is the error of key i, as for kvpool_remove. The second of two equal keys is
 *     NOT_FOUND. The call returns OK after it has tried all keys. After another error the call has
 *     removed nothing. */
KVPOOL_EXPORT int kvpool_batch_remove(kvpool_t *pool, const kvpool_key_t *keys, size_t n, const kvpool_opts_t *opts,
                                      int *results);

/* The copies of an object. */
#define KVPOOL_COPIES_MAX 8
typedef struct {
    /* Bytes of the object. */
    uint64_t len;
    /* The number of copies in memory of nodes that are connected, at most KVPOOL_COPIES_MAX. */
    uint32_t copies;
    /* The segment of each copy: a `segment_id` of kvpool_stat, which also names the node. */
    uint32_t segments[KVPOOL_COPIES_MAX];
    /* The SSD tier with a copy: a `segment_id` of `tiers` in kvpool_stat. 0 = no SSD has one. */
    uint32_t tier;
    /* With KVPOOL_LINEAGES: 1 if the object has a lineage. */
    uint32_t has_lineage;
    kvpool_lineage_t lineage;
} kvpool_place_t;

/* kvpool_batch_locate returns the places of n objects, for tools. The call reserves nothing and
 * does not count as a read, so the answer may be stale at its return. A master keeps lineages in
 * its log; a master without a log has no lineages after a restart. An upsert replaces the lineage.
 *   Errors: results[i] is the error of key i: NOT_FOUND, NODE_LOST, BAD_KEY. */
KVPOOL_EXPORT int kvpool_batch_locate(kvpool_t *pool, const kvpool_key_t *keys, size_t n, const kvpool_opts_t *opts,
                                      kvpool_place_t *places, int *results);

/* ---- Look-ups that reserve */

/* A reservation protects the found objects from eviction until it is released or expires. If the
 * session or the master is lost, the library renews the reservation in its next session. If the
 * renewal takes longer than 2 s from the start of the next master, other clients' puts may have
 * evicted the objects. */
typedef struct {
    /* The handle's number of the reservation. 0 = nothing is reserved. */
    uint64_t ticket;
    /* Keys found; of longest_prefix, the length of the prefix. */
    uint32_t found;
    /* Keys reserved, at most found: the pool bounds reservations. Of longest_prefix, the first
     * ones. */
    uint32_t granted;
    /* The reservation expires so many milliseconds after the answer. */
    uint32_t ttl_ms;
    /* Reserved objects that are only on SSDs. A get of them takes longer. */
    uint32_t on_ssd;
    /* The epoch of the tenant at the moment of the answer. 0 if n was 0. */
    uint32_t epoch;
} kvpool_lookup_t;

/* Bits of present[i] of a look-up with KVPOOL_PLACES. */
enum {
    /* The key is present. */
    KVPOOL_PRESENT = 1,
    /* The object is only on SSDs. With KVPOOL_GROUPS this bit is never set. */
    KVPOOL_ON_SSD = 2,
    /* A copy of the object (with KVPOOL_GROUPS: of the group's first object) lies in memory of a
     * node on this client's host. */
    KVPOOL_ON_HOST = 4,
};

/* kvpool_longest_prefix counts the keys that are present, from the first key to the first missing
 * one, and reserves them. kvpool_lookup finds each key, and reserves the present ones. Both set
 * present[i] for each of the n keys to 1 or 0; with KVPOOL_PLACES, to KVPOOL_PRESENT with the other
 * bits, or 0. After the first missing key, longest_prefix sets 0. present may be NULL. n is at most
 * KVPOOL_BATCH_MAX. ttl_ms 0 means the lease time of the pool, which is also the maximum. A look-up
 * counts as a use of its keys for the order of eviction only if the caller then gets the last
 * reserved key, or puts the first missing key, before the reservation ends.
 *   Ownership: the caller ends the reservation with kvpool_lookup_release, or lets it expire.
 *   Errors: NOMEM, and STALE (KVPOOL_EPOCH: the tenant has another epoch): nothing is reserved. */
KVPOOL_EXPORT int kvpool_longest_prefix(kvpool_t *pool, const kvpool_key_t *keys, size_t n, uint32_t ttl_ms,
                                        const kvpool_opts_t *opts, uint8_t *present, kvpool_lookup_t *lookup_out);
KVPOOL_EXPORT int kvpool_lookup(kvpool_t *pool, const kvpool_key_t *keys, size_t n, uint32_t ttl_ms,
                                const kvpool_opts_t *opts, uint8_t *present, kvpool_lookup_t *lookup_out);

/* kvpool_lookup_release ends a reservation. A reservation that has ended is ignored.
 *   Blocking: sends a message and does not wait. */
KVPOOL_EXPORT int kvpool_lookup_release(kvpool_t *pool, const kvpool_lookup_t *lookup);

/* ---- The whole tenant */

/* kvpool_remove_by_regex and kvpool_remove_all remove many objects of the tenant. *removed_out
 * counts the removed objects, *held_out (may be NULL) the objects that stayed because readers or
 * reservations hold them. The pattern is a PCRE2 regular expression of at most 1024 bytes; it may
 * match any part of a key, with bounded effort.
 *   Errors: BAD_PATTERN; NOTSUP (KVPOOL_WAIT). */
KVPOOL_EXPORT int kvpool_remove_by_regex(kvpool_t *pool, const char *pattern, const kvpool_opts_t *opts,
                                         uint64_t *removed_out, uint64_t *held_out);
KVPOOL_EXPORT int kvpool_remove_all(kvpool_t *pool, const kvpool_opts_t *opts, uint64_t *removed_out,
                                    uint64_t *held_out);

/* kvpool_bump invalidates all objects that the tenant has put, in one step, for example for new
 * model weights. After the call no get can return any of the old objects. The master frees the
 * space in the background. *epoch_out (may be NULL) is the number of the bump. The number rises
 * with each bump, by more than 1 if the master forgot the tenant in between because the tenant
 * owned nothing. A master that starts without a log begins at 0 again. With KVPOOL_EPOCH the call
 * does nothing if the tenant has another epoch. This may be the epoch of the call's own bump, if
 * the answer was lost with the master.
 *   Errors: LIMIT (the master still remembers the bumps of 4095 other tenants), STALE (KVPOOL_EPOCH:
 *     the tenant has another epoch), NOTSUP (the master is too old). */
KVPOOL_EXPORT int kvpool_bump(kvpool_t *pool, const kvpool_opts_t *opts, uint32_t *epoch_out);

/* kvpool_list calls fn for up to limit committed objects whose keys begin with prefix, which may be
 * empty. It starts at *cursor (0 = the first object) and advances *cursor (0 = the end). The list
 * is not a snapshot: objects that are put meanwhile may be missing.
 *   Ownership: fn borrows its pointers until it returns. A result of fn other than 0 ends the
 *   list. */
typedef int (*kvpool_list_fn)(void *arg, const void *key, size_t key_len, uint64_t len);
KVPOOL_EXPORT int kvpool_list(kvpool_t *pool, const void *prefix, size_t prefix_len, uint32_t limit, uint64_t *cursor,
                              kvpool_list_fn fn, void *arg, const kvpool_opts_t *opts);

/* ---- Operation */

/* kvpool_unmount_ssd takes the SSDs of the embedded node out of the pool, permanently. Objects that
 * are only there become NODE_LOST. The next node with the same name and SSDs finds the objects
 * again. Without SSDs it returns OK.
 *   Errors: DEADLINE (the master was not reached; the SSDs are unmounted all the same). */
KVPOOL_EXPORT int kvpool_unmount_ssd(kvpool_t *pool, const kvpool_opts_t *opts);

/* kvpool_stat writes the figures of the pool and of this client as one JSON object
 * (docs/operations/metrics.md lists the keys). The text always ends with a terminator. *len_out is
 * the length without the terminator; after BUFFER_SMALL it is the length of the whole text. */
KVPOOL_EXPORT int kvpool_stat(kvpool_t *pool, char *buf, size_t cap, size_t *len_out, const kvpool_opts_t *opts);

/* kvpool_explain writes, as one JSON object in the form of kvpool_stat, where the key's object is or
 * why it is not there (docs/operations/why.md lists the keys and the causes). A key that was never
 * put is no error: its cause is "not_known".
 *   Errors: BUFFER_SMALL, BAD_KEY, NOTSUP (the master is too old). */
KVPOOL_EXPORT int kvpool_explain(kvpool_t *pool, const void *key, size_t key_len, char *buf, size_t cap,
                                 size_t *len_out, const kvpool_opts_t *opts);

typedef struct {
    /* Committed objects of all tenants. */
    uint64_t objects;
    /* Bytes of the log's files after the old files are deleted. */
    uint64_t log_bytes;
} kvpool_snapshot_t;

/* kvpool_snapshot makes the master write a snapshot of its state as the start of a new log, and
 * delete the older files. A snapshot that is being written already serves the call, too.
 *   Blocking: until the snapshot is written. After DEADLINE the master continues to write it.
 *   Errors: NOTSUP (the master keeps no log), SYS (the master cannot write). */
KVPOOL_EXPORT int kvpool_snapshot(kvpool_t *pool, const kvpool_opts_t *opts, kvpool_snapshot_t *snapshot_out);

#define KVPOOL_DRAIN_ASK 0
#define KVPOOL_DRAIN_BEGIN 1
#define KVPOOL_DRAIN_END 2
typedef struct {
    /* sizeof(kvpool_drain_t) */
    size_t struct_size;
    /* The name of the node. */
    const char *node;
    /* ASK: only report the progress. BEGIN: move the node's objects to other nodes; a second BEGIN
     * changes the options that are not 0, and keep_ssd. END: the node accepts puts again. */
    uint32_t what;
    /* BEGIN: 1 = no object is evicted to make room. 2 = if no memory is free elsewhere, the oldest
     * objects of the pool are evicted. 0 = no change; a new drain evicts. */
    uint32_t no_evict;
    /* BEGIN: after this time objects are moved even if a client views or holds them; 0 = no change; a
     * new drain waits for the client. After a fail-over the new leader waits again. */
    uint64_t deadline_ms;
    /* BEGIN: limit of the bytes that all drains together move in a second; 0 = no change; the default
     * is 200 MiB. */
    uint64_t bytes_per_s;
    /* BEGIN: 1 = objects that only the node's SSD has stay there, and no client can read them while the
     * node is away. 0 = they are moved to other nodes, too. */
    uint32_t keep_ssd;
} kvpool_drain_t;

/* kvpool_drain begins or ends the drain of a node, or asks for its progress. Clients can
 * read and remove the objects while they move. The drain is in the master's log, and lasts until END
 * or until the node is unmounted. The progress is one JSON object in the form of kvpool_stat
 * (docs/operations/patching.md lists the keys).
 *   Blocking: for the answer, not until the drain is over.
 *   Errors: NO_SEGMENT (no node of that name), IN_PROGRESS (the node is being unmounted),
 *   RETRY_AFTER, LOG_FAILED, NOTSUP (the master is too old), BUFFER_SMALL (the call had its effect). */
KVPOOL_EXPORT int kvpool_drain(kvpool_t *pool, const kvpool_drain_t *drain, char *buf, size_t cap, size_t *len_out,
                               const kvpool_opts_t *opts);

/* kvpool_sessions returns one page of the master's sessions with clients and nodes, as one JSON
 * object: "sessions" is the list, and "next" is the value of `from` for the next page (0 = this is the
 * last page). The first page has `from` 0. If `end` is not 0, the call ends the session of that number
 * instead, the hexadecimal "id" in the list: the master closes the connection, and nodes end the
 * client's attachments. The client connects again, unless its token or certificate was revoked.
 *   Blocking: for the answer.
 *   Errors: NOT_FOUND (no session of that number), DENIED, NOTSUP (the master is too old),
 *   BUFFER_SMALL (the call had its effect). */
KVPOOL_EXPORT int kvpool_sessions(kvpool_t *pool, uint64_t end, uint32_t from, char *buf, size_t cap, size_t *len_out,
                                  const kvpool_opts_t *opts);

/* States of a task. */
#define KVPOOL_TASK_WAITS 0
#define KVPOOL_TASK_RUNS 1
#define KVPOOL_TASK_FAILED 2
#define KVPOOL_TASK_DONE 3
typedef struct {
    /* sizeof(kvpool_task_t) */
    size_t struct_size;
    uint64_t id;
    uint32_t state;
    /* 1 = the copy in one segment is dropped at the end. */
    uint32_t is_move;
    /* FAILED: NOT_FOUND (the object was removed, replaced or evicted), NO_SPACE (no free memory in a
     * target for a second), NO_SEGMENT (a target left), NODE_LOST (the object could not be read from
     * a target), LIMIT (the object has 8 copies). */
    int failure;
    /* Unix times in milliseconds. */
    uint64_t created_ms, changed_ms;
} kvpool_task_t;

/* kvpool_task_begin makes the master copy the object of the key to the memory of n other segments, at
 * most KVPOOL_COPIES_MAX. If `from` is not 0, the copy in that segment is dropped when the others
 * exist and no client holds or views the object any more. kvpool_batch_locate and kvpool_stat return
 * the ids of segments. A copy does not count as a use of the object, and evicts nothing.
 * kvpool_task_ask reports on a task; its struct_size must be set. The leader remembers the last 10,000
 * tasks; another leader knows none of them. After a fail-over during a task the object may have copies
 * both in `from` and elsewhere.
 *   Blocking: for the answer, not until the task is over.
 *   Errors: NOT_FOUND (begin: no committed object in memory; ask: no such task of this tenant),
 *   NO_SEGMENT (a target does not take copies now, or `from` has no copy), LIMIT (10,000 tasks are
 *   unfinished), RETRY_AFTER, LOG_FAILED, NOTSUP (the master is too old). */
KVPOOL_EXPORT int kvpool_task_begin(kvpool_t *pool, const void *key, size_t key_len, uint32_t from, const uint32_t *to,
                                    size_t n, const kvpool_opts_t *opts, uint64_t *id_out);
KVPOOL_EXPORT int kvpool_task_ask(kvpool_t *pool, uint64_t id, const kvpool_opts_t *opts, kvpool_task_t *task_out);

#define KVPOOL_ADDRESS_MAX 288
typedef struct {
    /* The addresses of the leader before and after the switch, "HOST:PORT". */
    char from[KVPOOL_ADDRESS_MAX], to[KVPOOL_ADDRESS_MAX];
    /* The term of the new leader. */
    uint32_t term;
    /* Microseconds from the start of the call until a new leader was found. */
    uint64_t took_us;
} kvpool_switched_t;

/* kvpool_master_switch makes the leading master hand over to a standby that has all of its log.
 * Calls of other clients wait meanwhile. It needs no handle, and uses master, cluster, deadline_ms
 * and detail of conf.
 *   Blocking: until a new master leads.
 *   Errors: INVALID (conf names one master only), UNREACHABLE (no master leads), RETRY_AFTER (no
 *     standby is in sync; the leader stays), DEADLINE (the leader has stepped down, and no other
 *     one leads yet), DISCONNECTED (the leader closed the connection, perhaps before it read the
 *     request). */
KVPOOL_EXPORT int kvpool_master_switch(const kvpool_conf_t *conf, kvpool_switched_t *switched_out);

/* kvpool_host writes, in the form of kvpool_stat, the transports that work on this machine, the
 * reasons of those that do not, and the ports that RDMA would use. It needs no pool.
 *   Blocking: the first call opens the RDMA devices, which may take seconds.
 *   Errors: INVALID (also for a wrong KVPOOL_RDMA_DEVICE or KVPOOL_RDMA_GID_INDEX),
 *   BUFFER_SMALL. */
KVPOOL_EXPORT int kvpool_host(char *buf, size_t cap, size_t *len_out);

/* kvpool_strerror returns a sentence and kvpool_errname the stable name ("NOT_FOUND") of any error
 * number. kvpool_version returns "MAJOR.MINOR.PATCH".
 *   Blocking: they do not block.
 *   Ownership: the strings are static. */
KVPOOL_EXPORT const char *kvpool_strerror(int err);
KVPOOL_EXPORT const char *kvpool_errname(int err);
KVPOOL_EXPORT const char *kvpool_version(void);

#ifdef __cplusplus
}
#endif
#endif
