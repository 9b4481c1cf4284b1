/* SPDX-License-Identifier: Apache-2.0
 * kvpool.h - the C API of the pool. A program puts, gets and looks up blocks by key. The library moves the bytes between
 * the program's memory and the pool's without a copy in between.
 *
 * A call returns 0 (KVPOOL_OK) or a negative error of err.h. Counts go out by pointer. Unless a function says otherwise, any
 * thread may call it at any time, and many threads may use one handle at once. A call returns at most 20 ms of runnable time
 * after its deadline. After it has returned, nothing touches the buffers that it was given. After a get that failed, the
 * contents of its destination are undefined.
 *
 * A key has 1 to 1024 bytes of any kind. A value has 1 byte up to the pool's chunk size, and does not change once it was put.
 * A handle does not survive fork: in the child every call returns KVPOOL_FORKED, and close frees memory only.
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

#define KVPOOL_KEY_MAX 1024
#define KVPOOL_BATCH_MAX 8192 /* keys of one lookup; larger batches of other calls are split inside */

typedef struct kvpool kvpool_t;

/* How a handle verifies what it reads (conf.verify). AUTO checks checksums over TCP, and over RDMA if the kernel plays the adapter
 * (soft RoCE). PAYLOAD checks the checksum of every object that has one, on every transport. ADAPTERS is AUTO without the
 * check over soft RoCE. Environment: KVPOOL_VERIFY=payload or adapters. */
#define KVPOOL_VERIFY_AUTO 0
#define KVPOOL_VERIFY_PAYLOAD 1
#define KVPOOL_VERIFY_ADAPTERS 2

/* All members may be zero or NULL: defaults. Set struct_size to sizeof(kvpool_conf_t). Strings are copied. */
typedef struct {
    size_t struct_size;
    const char *master; /* "HOST:PORT[,HOST:PORT]", at most 16: the one that leads is found; or
                           "etcd://HOST:PORT[;HOST:PORT]", members of the etcd that knows the masters of `cluster` (NOTSUP
                           without libcurl.so.4). Else $KVPOOL_MASTER, else 127.0.0.1:50051 */
    const char *name; /* of this client or embedded node, at most 128 bytes; default: program name and pid */
    const char *host_id; /* default: the machine's id; two ids on one machine count as two hosts */
    const char *transports; /* "shm,rdma,tcp" in order of preference; else $KVPOOL_TRANSPORTS, else all there are. One
                               that is named and cannot be used here is an error (NOTSUP). docs/operations/options.md
                               says which devices rdma uses */
    uint32_t deadline_ms; /* of a call that gives none; default 5000 */
    uint32_t verify; /* KVPOOL_VERIFY_* */
    uint64_t memory_bytes; /* > 0: an embedded node offers that much memory to the pool while the handle is open */
    const char *listen; /* embedded node: "HOST:PORT" for peers; default 127.0.0.1:0. It serves by all transports that
                           work here; by rdma if HOST is an address of a device, else naming rdma is an error */
    uint64_t chunk_bytes; /* embedded node: 0 = default */
    const char *tenant; /* whose keys these are: equal keys of two tenants are two objects. A name of at most 128 bytes;
                           NULL, "" and "default" are the default one. INVALID: the pool has another tenant whose name
                           has the same hash */
    uint32_t locations; /* how many known locations the handle keeps, 128 bytes each. A get of a known location needs no
                           message to anyone. 0 = 65536, UINT32_MAX = none */
    char *detail; /* out, if not NULL: a sentence for a person that says what is wrong with the configuration or this
                     machine; "" = nothing. Cut to detail_cap bytes with the terminator. If NULL, the library logs it */
    size_t detail_cap;
    uint32_t
        master_wait_ms; /* how long calls wait for a master that is away or silent, all together: once that was in vain, later calls
                                return at once with the same error, until the library has found a master. Removals and calls
                                with a deadline_ms of their own wait for as long as they have. With several masters it is 10 s at least,
                                so that calls wait for the next leader. 0 = $KVPOOL_MASTER_WAIT ("1s"),
                                else every call waits; UINT32_MAX = every call waits */
    const char *const
        *ssd; /* embedded node: "DIR:SIZE", an SSD each, at most 16: what leaves memory is kept in a file of
                               that size in the directory, and found again by the next node of that name, which has to be
                               given. docs/operations/install.md */
    size_t ssd_n;
    uint64_t ssd_writes; /* bytes a day that are written to them at most; 0 = any */
    bool state_only; /* stat and list, also of a master that does not lead: other calls are refused (NOT_LEADER). No
                        embedded node may be asked for */
    const char *
        cluster; /* with "etcd://": what --cluster of the masters says; else $KVPOOL_CLUSTER, else $MC_STORE_CLUSTER_ID,
                            else "kvpool" */
} kvpool_conf_t;

/* kvpool_open connects to the pool (within deadline_ms) and, with memory_bytes, mounts an embedded node. It waits, in that time, also until
 * what is on the SSDs is found. conf may be
 * NULL. INVALID, NOTSUP, UNREACHABLE, VERSION, DEADLINE, SEGMENT_EXISTS, SYS, NOMEM. *pool_out is set only on success. */
KVPOOL_EXPORT int kvpool_open(const kvpool_conf_t *conf, kvpool_t **pool_out);

/* kvpool_close ends the session. Calls of other threads that are under way return CLOSED first. Views become invalid. An
 * embedded node is unmounted. kvpool_close blocks for about a second at most. Until kvpool_free the handle stays a valid
 * pointer, and every call on it, also a second close, returns CLOSED. */
KVPOOL_EXPORT int kvpool_close(kvpool_t *pool);

/* kvpool_free frees the handle, and closes it first if needed. It ignores NULL. No other thread may be in a call on the
 * handle. */
KVPOOL_EXPORT void kvpool_free(kvpool_t *pool);

/* kvpool_why_unreachable writes, for people, why the last attempt to reach the pool's master failed: refused, timed out, a name that does
 * not resolve, or no master that leads. "" if none has failed. Cut to cap bytes with the terminator. After kvpool_close it is CLOSED.
 * kvpool_open leaves the same text in conf.detail, and a call that returns UNREACHABLE in opts.detail. */
KVPOOL_EXPORT int kvpool_why_unreachable(kvpool_t *pool, char *text, size_t cap);

/* kvpool_register makes [addr, addr + len) usable by batch calls. The range must be mapped and must not overlap a registered one
 * (INVALID). It must stay mapped until kvpool_unregister(addr). kvpool_unregister takes the start of a registered range
 * (NOT_REGISTERED otherwise), and waits for calls that use it. If the process uses an RDMA device, the library pins the memory,
 * in the background if it is large. Memory that cannot be pinned (ulimit -l) is moved by copies.
 *
 * The range may be memory of one GPU (CUDA). Its context must live until kvpool_free. The library registers it with RDMA devices
 * before the call returns. If they do not take it, its bytes go through bounce buffers. Put and get, also of a single
 * object, then take addresses in it, alone or beside addresses of the host. Before a put the caller waits for the streams
 * that write to the memory. Work that the caller starts after a get sees what the get wrote. */
KVPOOL_EXPORT int kvpool_register(kvpool_t *pool, void *addr, size_t len);
KVPOOL_EXPORT int kvpool_unregister(kvpool_t *pool, void *addr);

/* kvpool_copy copies n pieces within this process, between registered memory of the host and of devices. It does not copy from
 * device to device (NOTSUP of that piece). The pieces are independent and have no order. dst and src of a piece may not overlap.
 * Each lies in one registered range (NOT_REGISTERED), and is neither NULL nor empty (INVALID). results[i] is the error of piece i;
 * SYS if a device fails. kvpool_copy returns OK after it has tried all pieces. After another error (INVALID, CLOSED, FORKED, NOMEM)
 * any of the pieces may have been copied. It does not ask the pool and has no deadline: it takes as long as the copies take. */
typedef struct {
    void *dst;
    const void *src;
    size_t len; /* bytes */
} kvpool_copy_t;
KVPOOL_EXPORT int kvpool_copy(kvpool_t *pool, const kvpool_copy_t *pieces, size_t n, int *results);

/* Where an object stands in a sequence of blocks. The pool keeps it beside the object and makes nothing of it. */
typedef struct {
    uint64_t sequence; /* hash of all blocks up to and with this one */
    uint64_t parent; /* that of the block before */
    uint32_t depth; /* blocks before it */
} kvpool_lineage_t;

/* Options of one call; NULL = defaults. */
typedef struct {
    size_t struct_size;
    uint32_t deadline_ms; /* 0 = the handle's */
    uint32_t flags; /* KVPOOL_FORCE and the others below */
    uint32_t replicas; /* put: copies on as many hosts, on as many nodes where hosts are fewer; 0 = 1, at most 8 */
    char *
        detail; /* out, if not NULL: a sentence for a person in which the master says why it refused, or why no master is reached; "" = neither.
                     Cut to detail_cap bytes with the terminator. Of a batch, the last such sentence */
    size_t detail_cap;
    uint32_t segment; /* put: only to this segment (`segment_id` of kvpool_stat), else NO_SPACE. 0 = to any segment.
                         remove: of an object with several copies only the one in this segment. 0 = all copies */
    const kvpool_lineage_t *lineage; /* kvpool_put, kvpool_upsert: the object's; NULL = none. Items of a batch have
                                        their own */
} kvpool_opts_t;

#define KVPOOL_FORCE 1u /* remove: also what a reader or a reservation holds */
#define KVPOOL_UPSERT 2u /* put: a committed key gets the new value */
#define KVPOOL_PIN_SOFT 4u /* put: evicted after all unpinned objects, within the pool's budget for soft pins */
#define KVPOOL_PIN_HARD 8u /* put: never evicted, only removed; the pin outlives the master */
#define KVPOOL_WAIT 16u /* remove, upsert: returns when no reader anywhere can get the old value any more */
#define KVPOOL_HEED_PROBES 32u /* remove: HELD also while a recent exists protects the key */
#define KVPOOL_FRESH 64u /* get: asks the master, even if the location is known */
#define KVPOOL_GROUPS 128u /* lookup, longest_prefix: the keys name groups */
#define KVPOOL_SOON 256u /* conf.master_wait_ms counts, although deadline_ms is given */
#define KVPOOL_LINEAGES 512u /* locate: tells lineages, too */
#define KVPOOL_PREFETCH                                                                                                \
    1024u /* lookup, longest_prefix: what is reserved and on SSDs alone is read into memory meanwhile */
#define KVPOOL_REPORT_ALREADY 2048u /* put: ALREADY instead of OK if the key had a value before the call, which stays */

/* Single-object calls. Memory of the host need not be registered; memory of a GPU must be.
 *
 * kvpool_put stores a value. It returns OK also if the key is committed already: the old value stays, since values do not
 *   change. With KVPOOL_REPORT_ALREADY it returns ALREADY then. IN_PROGRESS: other live clients were putting the key each time that the library asked, for 250 ms of the call.
 *   DEADLINE comes first if the call has less time. A client that is stopped loses the key after 1.25 s to the next one that
 *   asks. Other errors: NO_SPACE, RETRY_AFTER, TOO_LARGE, BAD_KEY, DEADLINE, ...
 * kvpool_get copies the whole object to buf. *len_out is its length, also with BUFFER_SMALL. NOT_FOUND, NODE_LOST, STALE (the
 *   object was replaced during the read, more than once), NO_SPACE (it is on SSD alone, and until the deadline there was no room for it
 *   in the memory of its node: all of that is held, pinned or being written).
 * kvpool_exists sets *exists_out to 1 or 0.
 * kvpool_size sets *len_out to the length in bytes, or returns NOT_FOUND.
 * kvpool_upsert is a put that replaces a committed value, also one that readers hold; their views become STALE. If only the
 *   space of the old value can be had, the library drops the old value first: after NO_SPACE or DEADLINE the key may be gone.
 *   Others may read the new value a moment before the upsert returns; if the master dies in that moment, the old value may be
 *   back, and the upsert goes on with the next master.
 *   NOTSUP: the master is too old for it.
 * kvpool_remove returns NOT_FOUND if there is no such key. Without KVPOOL_FORCE it returns HELD for a key that readers or
 *   reservations hold; with KVPOOL_HEED_PROBES also while a recent exists protects the key. Without KVPOOL_FORCE it may take
 *   2 s after a new master has started, since that master does not know yet what is held.
 *
 * Known locations. A get notes where the object lies, and the next get of that key reads there without a message to anyone.
 * So a get may return the old value after another client's remove or upsert has returned. This happens only if a node did not
 * answer the master in time, and for at most the location lease of the pool (1 s), or the location grace if the master is
 * lost. With KVPOOL_WAIT the remove or upsert returns when no get anywhere can do so any more. KVPOOL_FRESH asks the master. */
KVPOOL_EXPORT int kvpool_put(kvpool_t *pool, const void *key, size_t key_len, const void *value, size_t len,
                             const kvpool_opts_t *opts);
KVPOOL_EXPORT int kvpool_upsert(kvpool_t *pool, const void *key, size_t key_len, const void *value, size_t len,
                                const kvpool_opts_t *opts);
KVPOOL_EXPORT int kvpool_get(kvpool_t *pool, const void *key, size_t key_len, void *buf, size_t cap, size_t *len_out,
                             const kvpool_opts_t *opts);
KVPOOL_EXPORT int kvpool_exists(kvpool_t *pool, const void *key, size_t key_len, int *exists_out,
                                const kvpool_opts_t *opts);
KVPOOL_EXPORT int kvpool_size(kvpool_t *pool, const void *key, size_t key_len, size_t *len_out,
                              const kvpool_opts_t *opts);
KVPOOL_EXPORT int kvpool_remove(kvpool_t *pool, const void *key, size_t key_len, const kvpool_opts_t *opts);

/* A view is the bytes of an object where they lie, in memory shared with a node of this host. Nothing is copied. The pool does
 * not evict an object that has a view; this holds also if the session or the master is lost, as for a reservation (below). A
 * forced remove or an upsert may change the bytes under the reader. So what was read counts only after kvpool_view_release has
 * returned OK. A view keeps that node's memory mapped, as far as this handle has opened it, also if the node or the session is
 * lost. */
typedef struct {
    const void *data; /* read-only, until release or close */
    size_t len;
    void *handle; /* the library's; NULL = no view */
} kvpool_view_t;

/* kvpool_view returns NOT_FOUND, NODE_LOST and STALE as kvpool_get does; NOTSUP if no copy lies in shared memory of this host;
 *   LIMIT beyond 16384 views and gets at a time.
 * kvpool_view_release ends the view and empties *view, whatever it returns. STALE: the object was replaced or removed, or the
 *   session was lost and no later one holds the object; the caller then discards what it read. INVALID: the view is empty.
 *   kvpool_close ends all views: their memory is gone, and release returns CLOSED. */
KVPOOL_EXPORT int kvpool_view(kvpool_t *pool, const void *key, size_t key_len, const kvpool_opts_t *opts,
                              kvpool_view_t *view_out);
KVPOOL_EXPORT int kvpool_view_release(kvpool_t *pool, kvpool_view_t *view);

typedef struct {
    const void *data;
    size_t len;
} kvpool_key_t;

typedef struct {
    void *addr;
    size_t len;
} kvpool_iov_t;

/* A put may make its object a member of a group. The pool evicts the members of a group together. If members > 0, it also hides
 * them until that many have been put. */
typedef struct {
    kvpool_key_t id; /* 1 to 1024 bytes */
    uint32_t members; /* at most 4096 */
    uint32_t member; /* which of them this is, below members */
} kvpool_group_t;

/* One object of a batch: its key and its scatter list (61 layers are one object). The object is the pieces in order: at most
 * 1024, none empty, each in registered memory (NOT_REGISTERED). For a get the pieces together must be at least as long as
 * the object (BUFFER_SMALL). A get sets len to the length of the object. */
typedef struct {
    kvpool_key_t key;
    const kvpool_iov_t *iov;
    size_t iov_n;
    size_t len;
    const kvpool_group_t *group; /* put; NULL = none */
    const kvpool_lineage_t *lineage; /* put; NULL = none */
} kvpool_item_t;

/* kvpool_batch_put and kvpool_batch_get move n objects. results[i] is the error of item i, as for put and get. They return OK
 * after they have tried all items, whatever the results are. After another error (INVALID, CLOSED, FORKED, NOMEM) nothing was done.
 * n may be 0. If a key occurs twice in a batch of puts, the first value that can be put stays; of upserts the last one. */
KVPOOL_EXPORT int kvpool_batch_put(kvpool_t *pool, kvpool_item_t *items, size_t n, const kvpool_opts_t *opts,
                                   int *results);
KVPOOL_EXPORT int kvpool_batch_get(kvpool_t *pool, kvpool_item_t *items, size_t n, const kvpool_opts_t *opts,
                                   int *results);

/* kvpool_batch_is_exist sets results[i] to 1 or 0, or to a negative error of that key. Like kvpool_exists it leaves a probe on each
 * key that it found: for the lease time of the pool that key is evicted only if nothing else can be. Probes protect at most
 * a quarter of the pool, of a longer batch what comes first, and each key until it is read or put again, and for the lease time since it was
 * first asked for. */
KVPOOL_EXPORT int kvpool_batch_is_exist(kvpool_t *pool, const kvpool_key_t *keys, size_t n, const kvpool_opts_t *opts,
                                        int *results);

/* Where copies of an object lie. */
#define KVPOOL_COPIES_MAX 8
typedef struct {
    uint64_t len; /* of the object, bytes */
    uint32_t copies; /* at most KVPOOL_COPIES_MAX; of nodes that are there */
    uint32_t segments[KVPOOL_COPIES_MAX]; /* `segment_id` of kvpool_stat, which names the node */
    uint32_t tier; /* the SSD tier that has it, too, or with no copies alone: `segment_id` of `tiers`; 0 = none */
    uint32_t has_lineage; /* with KVPOOL_LINEAGES: 1 if it was put with one */
    kvpool_lineage_t lineage;
} kvpool_place_t;

/* kvpool_batch_locate tells where objects lie, for tools. results[i] is the error of key i (OK, NOT_FOUND, NODE_LOST, BAD_KEY), and
 * places[i] its places. It takes no lease and does not count as a read; the answer may be stale on return. A lineage outlives the
 * master with its log; a master that learns from the nodes what there is knows none. An upsert's takes the place of the old one's. */
KVPOOL_EXPORT int kvpool_batch_locate(kvpool_t *pool, const kvpool_key_t *keys, size_t n, const kvpool_opts_t *opts,
                                      kvpool_place_t *places, int *results);

/* A reservation keeps what a lookup found readable until it is released or expires (ttl_ms from the answer). If the session or
 * the master is lost, the library reserves it again in the next session. The objects may be gone if that takes longer than 2 s
 * from the start of the next master, and another client needs the space. */
typedef struct {
    uint64_t ticket; /* the handle's own number; 0 = nothing reserved */
    uint32_t found; /* keys found; for a prefix: its length */
    uint32_t granted; /* of these, reserved (a bound on reservations may cut it); for a prefix the first ones */
    uint32_t ttl_ms;
    uint32_t on_ssd; /* of those reserved: on SSDs alone, so that a get takes longer */
} kvpool_lookup_t;

/* kvpool_longest_prefix counts how many of the keys, from the first one on, are present, and reserves them.
 * kvpool_lookup tells for each key whether it is present (present[i] = 1 or 0; present may be NULL), and reserves those.
 *   n is at most KVPOOL_BATCH_MAX. ttl_ms 0 is the lease time of the pool, which is also the longest. A lookup alone does not
 *   count as a read for eviction, which takes the least recently used objects first. It counts if, before it ends, the last key that it
 *   reserved was got, or the first key that was missing was put. NOMEM: nothing is reserved.
 * kvpool_lookup_release ends a reservation early. It ignores one that is released or has expired. It sends and does not wait. */
KVPOOL_EXPORT int kvpool_longest_prefix(kvpool_t *pool, const kvpool_key_t *keys, size_t n, uint32_t ttl_ms,
                                        const kvpool_opts_t *opts, kvpool_lookup_t *lookup_out);
KVPOOL_EXPORT int kvpool_lookup(kvpool_t *pool, const kvpool_key_t *keys, size_t n, uint32_t ttl_ms,
                                const kvpool_opts_t *opts, uint8_t *present, kvpool_lookup_t *lookup_out);
KVPOOL_EXPORT int kvpool_lookup_release(kvpool_t *pool, const kvpool_lookup_t *lookup);

/* kvpool_batch_remove removes n keys, up to 512 with each message to the master. results[i] is what kvpool_remove returns for key i;
 * the second of two equal keys is NOT_FOUND. It returns OK after it has tried all keys. After another error (INVALID, CLOSED,
 * FORKED, NOMEM) nothing was done. n may be 0. */
KVPOOL_EXPORT int kvpool_batch_remove(kvpool_t *pool, const kvpool_key_t *keys, size_t n, const kvpool_opts_t *opts,
                                      int *results);

/* kvpool_remove_by_regex and kvpool_remove_all remove many keys. *removed_out counts the removed objects, *held_out (may be NULL)
 * the objects that stayed because readers or reservations hold them. The pattern is a PCRE2 regular expression of at most
 * 1024 bytes, matched unanchored against each key with a bounded effort (BAD_PATTERN). KVPOOL_WAIT is NOTSUP here. */
KVPOOL_EXPORT int kvpool_remove_by_regex(kvpool_t *pool, const char *pattern, const kvpool_opts_t *opts,
                                         uint64_t *removed_out, uint64_t *held_out);
KVPOOL_EXPORT int kvpool_remove_all(kvpool_t *pool, const kvpool_opts_t *opts, uint64_t *removed_out,
                                    uint64_t *held_out);

/* kvpool_bump makes everything that the tenant has put so far unfindable in one step, however much it is: for new weights. It
 * returns when no get anywhere can return any of it. The master frees the space in the background. *epoch_out (may be NULL)
 * numbers the bumps: it rises with each, by more than 1 where the master has forgotten the tenant in between, because it owned
 * nothing. LIMIT: 4095 other tenants were bumped that cannot be forgotten yet. NOTSUP: the master is too old for it. */
KVPOOL_EXPORT int kvpool_bump(kvpool_t *pool, const kvpool_opts_t *opts, uint32_t *epoch_out);

/* kvpool_list calls fn for up to limit committed objects whose key begins with prefix (may be empty). It begins at *cursor (0 = at
 * the start) and moves *cursor (0 = at the end). It is not a snapshot: objects that are put meanwhile may be missing. The
 * pointers of fn are borrowed for the call. fn returns 0 to go on. */
typedef int (*kvpool_list_fn)(void *arg, const void *key, size_t key_len, uint64_t len);
KVPOOL_EXPORT int kvpool_list(kvpool_t *pool, const void *prefix, size_t prefix_len, uint32_t limit, uint64_t *cursor,
                              kvpool_list_fn fn, void *arg, const kvpool_opts_t *opts);

/* kvpool_unmount_ssd takes the embedded node's SSDs out of the pool, for good: what they alone have is NODE_LOST to readers, and found
 * again when a node of that name has them. OK also if there are none. DEADLINE: the master was not reached; they go all the same. */
KVPOOL_EXPORT int kvpool_unmount_ssd(kvpool_t *pool, const kvpool_opts_t *opts);

/* kvpool_stat writes the figures of the pool and of this client into buf, as one JSON object (docs/operations/metrics.md lists the
 * keys). buf is always terminated. *len_out is the length without the terminator; with BUFFER_SMALL it is the length that is
 * needed. */
KVPOOL_EXPORT int kvpool_stat(kvpool_t *pool, char *buf, size_t cap, size_t *len_out, const kvpool_opts_t *opts);

/* kvpool_snapshot has the master write its log anew: all that is there is said once more in a new file, and the files before it go. It
 * returns when that is done, also if it was under way already. NOTSUP: the master keeps no log. SYS: it cannot write it. DEADLINE:
 * it goes on behind the call. */
typedef struct {
    uint64_t objects; /* committed, of all tenants */
    uint64_t log_bytes; /* of the log's files, when those before had gone */
} kvpool_snapshot_t;
KVPOOL_EXPORT int kvpool_snapshot(kvpool_t *pool, const kvpool_opts_t *opts, kvpool_snapshot_t *snapshot_out);

/* kvpool_master_switch has the master that leads give up its lead when a standby has all that it has, and returns when another one leads;
 * calls of others wait meanwhile. It needs no handle: of conf it reads master, cluster, deadline_ms and detail. INVALID: not several
 * masters. UNREACHABLE: none leads. RETRY_AFTER: no standby is in sync; it leads on. DEADLINE: it has given up, and none leads yet. DISCONNECTED:
 * it ended the connection, perhaps before it heard. *switched_out is set only on success. */
#define KVPOOL_ADDRESS_MAX 288
typedef struct {
    char from[KVPOOL_ADDRESS_MAX], to[KVPOOL_ADDRESS_MAX]; /* "HOST:PORT" */
    uint32_t term; /* of the one that leads now */
    uint64_t took_us; /* from the question on */
} kvpool_switched_t;
KVPOOL_EXPORT int kvpool_master_switch(const kvpool_conf_t *conf, kvpool_switched_t *switched_out);

/* kvpool_host writes in the same way what this machine can move bytes with: which transports work here, why the others do not, and
 * the ports that rdma would use. It needs no pool. INVALID also if KVPOOL_RDMA_DEVICE or KVPOOL_RDMA_GID_INDEX is wrong. The
 * first call may take long, since it opens the devices. */
KVPOOL_EXPORT int kvpool_host(char *buf, size_t cap, size_t *len_out);

/* kvpool_strerror returns a sentence, kvpool_errname the stable name ("NOT_FOUND"), for any number. Static storage. */
KVPOOL_EXPORT const char *kvpool_strerror(int err);
KVPOOL_EXPORT const char *kvpool_errname(int err);
/* kvpool_version returns "MAJOR.MINOR.PATCH". */
KVPOOL_EXPORT const char *kvpool_version(void);

#ifdef __cplusplus
}
#endif
#endif
