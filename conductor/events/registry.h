/* SPDX-License-Identifier: Apache-2.0
 * The publishers: registrations, subscriptions, blocks, and the roster for readers. On the loop's
 * thread, except for marked functions. */
#ifndef KVP_CONDUCTOR_EVENTS_REGISTRY_H
#define KVP_CONDUCTOR_EVENTS_REGISTRY_H

#include "conductor/events/apply.h"
#include "conductor/events/feed.h"
#include "conductor/index/match.h"
#include "conductor/base/registration.h"

#include <uv.h>

#define KVP_PUBLISHERS_MAX 8192u

#define KVP_TROUBLE_MAX 4352u /* bytes of a text that names the data directory */

typedef struct kvp_registry kvp_registry_t;

/* data_dir is borrowed; NULL = registrations are not kept. NOMEM, SYS (the data directory cannot be
 * used), CORRUPT (what it has is no list of registrations); logged. */
kvp_err_t kvp_registry_create(uv_loop_t *uv, uint64_t hash_seed, uint32_t blocks_max, const char *data_dir,
                              kvp_registry_t **out) KVP_MUST_USE;
/* kvp_registry_stop closes all sockets and handles, which takes a turn of the loop;
 * kvp_registry_destroy after it has ended. */
void kvp_registry_stop(kvp_registry_t *r);
void kvp_registry_destroy(kvp_registry_t *r);

/* kvp_registry_add subscribes; a publisher of the same key is replaced, unless it is the same in
 * all fields. LIMIT, INVALID (an endpoint that ZMQ refuses), HELD (another publisher has bound the
 * endpoint), SYS, NOMEM; logged, with the reason in *why_out. kvp_registry_remove: NOT_FOUND.
 * kvp_registry_load adds the publishers of a file, a JSON array: the file of --publishers. */
kvp_err_t kvp_registry_add(kvp_registry_t *r, const kvp_registration_t *what, char why_out[160]) KVP_MUST_USE;
kvp_err_t kvp_registry_remove(kvp_registry_t *r, const kvp_registration_t *key) KVP_MUST_USE;
kvp_err_t kvp_registry_load(kvp_registry_t *r, const char *path) KVP_MUST_USE;

/* kvp_registry_is_kept, of any thread but the loop's: whether all changes are in the data
 * directory; waits up to 2 s for that. True without a directory. kvp_registry_trouble, of any
 * thread: why the data directory is not written. */
bool kvp_registry_is_kept(kvp_registry_t *r);
bool kvp_registry_trouble(const kvp_registry_t *r, char *text, size_t cap);

/* kvp_registry_is_ready, from any thread; once true it stays true: all publishers of the start have
 * been replayed, or cannot be. */
bool kvp_registry_is_ready(const kvp_registry_t *r);
/* kvp_registry_write_unreachable: the field `unreachable` of an object, an array of publishers of
 * which an endpoint cannot be reached. */
void kvp_registry_write_unreachable(const kvp_registry_t *r, kvp_jsonw_t *w);
/* kvp_registry_write_why, of any thread: the field `why` of an object, a list of texts; nothing without trouble. */
void kvp_registry_write_why(const kvp_registry_t *r, kvp_jsonw_t *w);
void kvp_registry_write_services(const kvp_registry_t *r, kvp_jsonw_t *w); /* an array */
void kvp_registry_write_view(const kvp_registry_t *r,
                             kvp_jsonw_t *w); /* fields of an object: what each instance holds */
void kvp_registry_write_metrics(const kvp_registry_t *r, kvp_buf_t *out);

/* kvp_registry_enter begins an epoch of any thread, which kvp_epoch_leave ends. The next three
 * functions are called in an epoch. kvp_registry_roster returns the publishers of engines, by
 * instance and rank. kvp_registry_match is kvp_match: space's texts and tenant are the question's.
 * kvp_registry_has_lora: events named the adapter of the model. */
kvp_epoch_reader_t *kvp_registry_enter(kvp_registry_t *r);
const kvp_roster_t *kvp_registry_roster(const kvp_registry_t *r);
bool kvp_registry_match(const kvp_registry_t *r, const kvp_namespace_t *space, const char *instance,
                        const uint64_t *hashes, size_t n, kvp_match_scratch_t *scratch,
                        const kvp_answer_t **answers_out, uint32_t *n_out) KVP_MUST_USE;
bool kvp_registry_has_lora(const kvp_registry_t *r, const char *model, const char *lora);
uint64_t kvp_registry_hash_seed(const kvp_registry_t *r);

#endif
