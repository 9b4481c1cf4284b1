/* SPDX-License-Identifier: Apache-2.0
 * kvpool.h - the C API of the pool: put, get and look up blocks by key; bytes move between your memory and the pool's
 * without a copy in between.
 *
 * Calls return 0 (KVPOOL_OK) or a negative error of err.h; counts go out by pointer. Unless a function says otherwise,
 * any thread may call it at any time, also many at once on one handle. No call outlives its deadline by more than
 * 20 ms of runnable time, and once it has returned nothing touches the buffers that it was given. After a get that
 * failed, the contents of its destination are undefined.
 *
 * Keys: 1 to 1024 bytes, any bytes. Values: 1 byte up to the pool's chunk size, immutable once put.
 * A handle does not survive fork: in the child every call gives KVPOOL_FORKED, and close frees memory only.
 */
#ifndef KVPOOL_H
#define KVPOOL_H

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

/* Verification of what is read (conf.verify): AUTO is what the way needs (by sum over TCP, and where the kernel plays the RDMA
 * adapter), PAYLOAD checks the sum of every object that has one, on every transport, and ADAPTERS is AUTO for who believes adapters
 * of any kind. Environment: KVPOOL_VERIFY=payload or adapters. */
#define KVPOOL_VERIFY_AUTO 0
#define KVPOOL_VERIFY_PAYLOAD 1
#define KVPOOL_VERIFY_ADAPTERS 2

/* All members may be zero or NULL: defaults. Set struct_size to sizeof(kvpool_conf_t). Strings are copied. */
typedef struct {
    size_t struct_size;
    const char *master; /* "HOST:PORT[,HOST:PORT]"; else $KVPOOL_MASTER, else 127.0.0.1:50051 */
    const char *name; /* of this client or embedded node, at most 128 bytes; default: program name and pid */
    const char *host_id; /* default: the machine's id; two ids on one machine count as two hosts */
    const char *transports; /* "shm,rdma,tcp" in order of preference; else $KVPOOL_TRANSPORTS, else all there are. One
                               that is named and cannot be used here is an error (NOTSUP). docs/operations/options.md
                               says which devices rdma uses */
    uint32_t deadline_ms; /* of a call that gives none; default 5000 */
    uint32_t verify; /* KVPOOL_VERIFY_* */
    uint64_t memory_bytes; /* > 0: an embedded node offers that much memory to the pool while the handle is open */
    const char *listen; /* embedded node: "HOST:PORT" for peers; default 127.0.0.1:0. It serves by all transports there
                           are: rdma where HOST is an address of a device; an error where it is none and rdma is named */
    uint64_t chunk_bytes; /* embedded node: 0 = default */
    uint32_t tenant; /* keys are the tenant's own: equal keys of two tenants are two objects */
    uint32_t locations; /* kept, so that what was got before is got again with no message to anyone (128 bytes each);
                           0 = 65536, UINT32_MAX = none */
    char *detail; /* out, where not NULL: what is wrong with the configuration or this machine, a sentence for a person;
                     "" = nothing. Cut to detail_cap bytes with the terminator. Without it, that is logged */
    size_t detail_cap;
} kvpool_conf_t;

/* kvpool_open connects to the pool (within deadline_ms) and, with memory_bytes, mounts an embedded node. conf may be
 * NULL. INVALID, NOTSUP, UNREACHABLE, VERSION, DEADLINE, SEGMENT_EXISTS, NOMEM. *pool_out is set only on success. */
KVPOOL_EXPORT int kvpool_open(const kvpool_conf_t *conf, kvpool_t **pool_out);

/* kvpool_close ends the session: calls of other threads that are under way give CLOSED and return first; views become
 * invalid; an embedded node is unmounted. Blocks for at most a second or so. The handle stays a valid pointer that
 * answers CLOSED to everything (also to a second close), until kvpool_free. */
KVPOOL_EXPORT int kvpool_close(kvpool_t *pool);

/* kvpool_free gives the handle's memory back, closing it first where needed. NULL is ignored. No other thread may be
 * in a call on it. */
KVPOOL_EXPORT void kvpool_free(kvpool_t *pool);

/* kvpool_register makes [addr, addr + len) usable by batch calls. There has to be memory, and ranges may not overlap a registered one
 * (INVALID). The memory must stay mapped until kvpool_unregister(addr), which takes the start of a registered range
 * (NOT_REGISTERED otherwise) and waits for calls that use it. Where an RDMA device is used the
 * memory is pinned, in the background where it is much; what cannot be pinned (ulimit -l) is moved by copies.
 * It may be memory of a GPU (CUDA), all of it of one device; its context must live until kvpool_free, too. It is registered
 * with RDMA devices before the call returns, where they take it, and staged by copies otherwise. Then put and get
 * take addresses in it, alone or beside the host's, single-object calls as well. What kernels still write has to be
 * there before a put begins (the caller waits for its streams); what a get brought is seen by what is started after it. */
KVPOOL_EXPORT int kvpool_register(kvpool_t *pool, void *addr, size_t len);
KVPOOL_EXPORT int kvpool_unregister(kvpool_t *pool, void *addr);

/* kvpool_copy copies n pieces within this process, between registered memory of the host and of devices in any direction but
 * from one device's to a device's (NOTSUP of that piece). The pieces are independent, in no order; dst and src of one may not overlap.
 * Each lies in one registered range (NOT_REGISTERED), and none is NULL or empty (INVALID). results[i] is the error of piece i, SYS
 * where a device fails. Returns OK when all pieces were gone through, else an error (INVALID, CLOSED, FORKED, NOMEM): then it is
 * not known which were copied. The pool is not asked and there is no deadline: it takes as long as these bytes take to copy. */
typedef struct {
    void *dst;
    const void *src;
    size_t len; /* bytes */
} kvpool_copy_t;
KVPOOL_EXPORT int kvpool_copy(kvpool_t *pool, const kvpool_copy_t *pieces, size_t n, int *results);

/* Options of one call; NULL = defaults. */
typedef struct {
    size_t struct_size;
    uint32_t deadline_ms; /* 0 = the handle's */
    uint32_t flags; /* KVPOOL_FORCE and the others below */
    uint32_t replicas; /* put: copies on as many hosts, fewer where there are fewer; 0 = 1, at most 8 */
    char
        *detail; /* out, where not NULL: what the master said of why it refused something, a sentence for a person; "" =
                     nothing. Cut to detail_cap bytes with the terminator; of a batch, what it said last */
    size_t detail_cap;
    uint32_t
        segment; /* put: only there (`segment_id` of kvpool_stat), or NO_SPACE: to see whether a node is reached, or
                         before a put that goes anywhere; 0 = anywhere */
} kvpool_opts_t;

#define KVPOOL_FORCE 1u /* remove: also what a reader or a reservation holds */
#define KVPOOL_UPSERT 2u /* put: a committed key gets the new value */
#define KVPOOL_PIN_SOFT 4u /* put: evicted after all that is not pinned, within the pool's budget for such pins */
#define KVPOOL_PIN_HARD 8u /* put: never evicted, only removed; a later master knows of it too */
#define KVPOOL_WAIT 16u /* remove, upsert: returns when no reader anywhere can still get the old value */
#define KVPOOL_HEED_PROBES 32u /* remove: HELD also while an exists of a moment ago protects the key */
#define KVPOOL_FRESH 64u /* get: ask the master, whatever locations are known */
#define KVPOOL_GROUPS 128u /* lookup, longest_prefix: the keys name groups */

/* Single-object calls. The memory need not be registered, unless it is a GPU's.
 * kvpool_put: OK also when the key is already committed (the value that is there stays; it is immutable).
 *   IN_PROGRESS: other live writers have had the key each time that was asked, for 250 ms in all of the call or to its deadline
 *   (DEADLINE, where that comes before an answer); one that is stopped loses it to who asks after 1.25 s. NO_SPACE, RETRY_AFTER,
 *   TOO_LARGE, BAD_KEY, DEADLINE, ...
 * kvpool_get: copies the whole object to buf; *len_out is its length (also set with BUFFER_SMALL). NOT_FOUND,
 *   NODE_LOST, STALE (replaced while it was read, more than once).
 * kvpool_exists: *exists_out = 1 or 0. kvpool_size: *len_out = length in bytes, or NOT_FOUND.
 * kvpool_upsert: as put, but a committed key gets the new value, whoever holds the old one (views of it go STALE).
 *   Where only the old value's space can be had, the old one goes first: after NO_SPACE or DEADLINE the key may be gone.
 *   NOTSUP: the master is too old for it.
 * kvpool_remove: NOT_FOUND, or HELD without KVPOOL_FORCE (and, with KVPOOL_HEED_PROBES, while an exists protects it).
 *   Without KVPOOL_FORCE it may take 2 s where a master has just taken over, which does not know yet what is held.
 *
 * Reading what was read before. A get notes where the object lies, and the next get of that key goes there without a
 * message to anyone. So after a removal or upsert by another client has returned, gets here may give the old value for
 * as long as the pool's location lease (1 s, or the location grace where the master is lost), but only where a node did
 * not answer the master in time; with KVPOOL_WAIT it returns when no get anywhere can. KVPOOL_FRESH asks the master. */
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

/* A view is the object's bytes where they lie, in memory shared with a node of this host: nothing is copied. The object
 * is not evicted while there is a view, also when the session or the master is lost meanwhile (as a reservation, below); it
 * can be removed by force or upserted, and then the bytes may change under the
 * reader's eyes. So what was read counts only once kvpool_view_release has returned OK. A view keeps mapped what this
 * handle has opened of that one node's memory, also when node or session are lost meanwhile. */
typedef struct {
    const void *data; /* read-only, until release or close */
    size_t len;
    void *handle; /* the library's; NULL = no view */
} kvpool_view_t;

/* kvpool_view: NOT_FOUND, NODE_LOST, STALE as for get; NOTSUP where no copy lies in this host's shared memory; LIMIT
 * beyond 16384 views and gets at a time.
 * kvpool_view_release ends it and empties *view, whatever it returns: OK, or STALE where the object was replaced or
 * removed meanwhile, or the session with the master was lost and no later one holds it: then discard what was read from it. INVALID for an empty
 * view. Views end with kvpool_close: their memory is gone then, and release gives CLOSED. */
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

/* A group that a put makes its object a member of. members > 0: the object is found only once that many have been put,
 * and they are evicted together; members 0: they are evicted together, no more. */
typedef struct {
    kvpool_key_t id; /* 1 to 1024 bytes */
    uint32_t members; /* at most 4096 */
    uint32_t member; /* which of them this is, below members */
} kvpool_group_t;

/* One object of a batch: its key and its scatter list (61 layers are one object). Every piece must lie in registered
 * memory (NOT_REGISTERED); the object is the pieces in order, at most 1024 of them, none empty. For a get the pieces
 * together must be at least as long as the object (BUFFER_SMALL). len is set by a get to the object's length. */
typedef struct {
    kvpool_key_t key;
    const kvpool_iov_t *iov;
    size_t iov_n;
    size_t len;
    const kvpool_group_t *group; /* put; NULL = none */
} kvpool_item_t;

/* kvpool_batch_put / kvpool_batch_get move n objects; results[i] is the error of item i (as for put and get). Returns
 * OK when the batch was carried out, whatever the single results are; an error (INVALID, CLOSED, FORKED, NOMEM)
 * means that nothing was done. n may be 0. A key that occurs twice in one put batch is put once, the first value that can be; of an upsert the last
 * one stays. */
KVPOOL_EXPORT int kvpool_batch_put(kvpool_t *pool, kvpool_item_t *items, size_t n, const kvpool_opts_t *opts,
                                   int *results);
KVPOOL_EXPORT int kvpool_batch_get(kvpool_t *pool, kvpool_item_t *items, size_t n, const kvpool_opts_t *opts,
                                   int *results);

/* kvpool_batch_is_exist: results[i] = 1 or 0, or a negative error of that key. As kvpool_exists it leaves a probe: for
 * the pool's lease time a key that was found is evicted only when nothing else can be; all keys that are asked for
 * again and again keep three quarters of the pool, and each for that time. */
KVPOOL_EXPORT int kvpool_batch_is_exist(kvpool_t *pool, const kvpool_key_t *keys, size_t n, const kvpool_opts_t *opts,
                                        int *results);

/* Where copies of an object lie. */
#define KVPOOL_COPIES_MAX 8
typedef struct {
    uint64_t len; /* of the object, bytes */
    uint32_t copies; /* at most KVPOOL_COPIES_MAX; of nodes that are there */
    uint32_t segments[KVPOOL_COPIES_MAX]; /* `segment_id` of kvpool_stat, which names the node */
} kvpool_place_t;

/* kvpool_batch_locate: results[i] is the error of that key (OK, NOT_FOUND, NODE_LOST, BAD_KEY), places[i] where it lies. For
 * tools that look: it holds nothing and is no use, and what it tells may be over when it returns. */
KVPOOL_EXPORT int kvpool_batch_locate(kvpool_t *pool, const kvpool_key_t *keys, size_t n, const kvpool_opts_t *opts,
                                      kvpool_place_t *places, int *results);

/* A reservation: what a lookup found stays readable until it is released or expires (ttl_ms from the answer), also when
 * the session or the master is lost meanwhile: the library reserves it again in the next session. Not where that takes
 * longer than 2 s from the next master's start on and somebody else needs the space. */
typedef struct {
    uint64_t ticket; /* the handle's own number; 0 = nothing reserved */
    uint32_t found; /* keys found; for a prefix: its length */
    uint32_t granted; /* of these, reserved (a bound on reservations may cut it); for a prefix the first ones */
    uint32_t ttl_ms;
} kvpool_lookup_t;

/* kvpool_longest_prefix counts how many of the keys, from the first on, are present, and reserves them.
 * kvpool_lookup tells it of each key (present[i] = 1 or 0; may be NULL) and reserves those. n at most
 * KVPOOL_BATCH_MAX. ttl_ms 0 = the pool's lease time, which is also the most that is given. To look up is not to use: eviction
 * takes what was used longest ago, and for that counts gets, and a lookup before whose end the last key that it reserved
 * was got, or the first that was missing was put. NOMEM: nothing is reserved.
 * kvpool_lookup_release ends the reservation early; a released or expired one is ignored. It sends and does not wait. */
KVPOOL_EXPORT int kvpool_longest_prefix(kvpool_t *pool, const kvpool_key_t *keys, size_t n, uint32_t ttl_ms,
                                        const kvpool_opts_t *opts, kvpool_lookup_t *lookup_out);
KVPOOL_EXPORT int kvpool_lookup(kvpool_t *pool, const kvpool_key_t *keys, size_t n, uint32_t ttl_ms,
                                const kvpool_opts_t *opts, uint8_t *present, kvpool_lookup_t *lookup_out);
KVPOOL_EXPORT int kvpool_lookup_release(kvpool_t *pool, const kvpool_lookup_t *lookup);

/* kvpool_batch_remove: results[i] is what kvpool_remove says of that key; of one that is there twice the second is NOT_FOUND.
 * One message to the master has up to 512 keys. OK when all were gone through; an error (INVALID, CLOSED, FORKED, NOMEM)
 * means that nothing was done. n may be 0. */
KVPOOL_EXPORT int kvpool_batch_remove(kvpool_t *pool, const kvpool_key_t *keys, size_t n, const kvpool_opts_t *opts,
                                      int *results);

/* Removing many. *removed_out counts what went, *held_out (may be NULL) what stayed because it is held. The pattern is
 * a PCRE2 regular expression of at most 1024 bytes, matched unanchored against whole keys with a bounded effort
 * (BAD_PATTERN). KVPOOL_WAIT is for single keys (NOTSUP). */
KVPOOL_EXPORT int kvpool_remove_by_regex(kvpool_t *pool, const char *pattern, const kvpool_opts_t *opts,
                                         uint64_t *removed_out, uint64_t *held_out);
KVPOOL_EXPORT int kvpool_remove_all(kvpool_t *pool, const kvpool_opts_t *opts, uint64_t *removed_out,
                                    uint64_t *held_out);

/* kvpool_bump makes all that the tenant has put so far unfindable, in one step however much it is: for new weights. It
 * returns when no get anywhere can give any of it; its space is freed by and by. *epoch_out (may be NULL) counts the
 * bumps. NOTSUP: the master is too old for it. */
KVPOOL_EXPORT int kvpool_bump(kvpool_t *pool, const kvpool_opts_t *opts, uint32_t *epoch_out);

/* kvpool_list calls fn for up to limit committed objects whose key begins with prefix (may be empty), from *cursor on
 * (0 = start), and moves *cursor (0 = that was the end). Not a snapshot: what is put meanwhile may be missed. fn's
 * pointers are borrowed for the call; fn returns 0 to go on. */
typedef int (*kvpool_list_fn)(void *arg, const void *key, size_t key_len, uint64_t len);
KVPOOL_EXPORT int kvpool_list(kvpool_t *pool, const void *prefix, size_t prefix_len, uint32_t limit, uint64_t *cursor,
                              kvpool_list_fn fn, void *arg, const kvpool_opts_t *opts);

/* kvpool_stat writes the pool's and this client's figures as one JSON object (snake_case keys, units in the names;
 * docs/operations/metrics.md) into buf, always terminated; *len_out is the length without the terminator. BUFFER_SMALL sets
 * *len_out to what is needed. */
KVPOOL_EXPORT int kvpool_stat(kvpool_t *pool, char *buf, size_t cap, size_t *len_out, const kvpool_opts_t *opts);

/* kvpool_host writes, in the same way, what this machine has to move bytes with: which transports work here, why the others
 * do not, and the ports that rdma would use. Needs no pool. INVALID also for what KVPOOL_RDMA_DEVICE and
 * KVPOOL_RDMA_GID_INDEX say. The first call may take long: it opens the devices. */
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
