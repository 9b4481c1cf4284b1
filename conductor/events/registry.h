/* SPDX-License-Identifier: Apache-2.0
 * The registry of publishers: registrations, subscriptions, blocks, and the roster for readers. All functions run
 * on the loop's thread, except where a comment names other threads. */
#ifndef KVP_CONDUCTOR_EVENTS_REGISTRY_H
#define KVP_CONDUCTOR_EVENTS_REGISTRY_H

#include "conductor/events/apply.h"
#include "conductor/events/feed.h"
#include "conductor/index/match.h"
#include "conductor/base/registration.h"

#include <uv.h>

#define KVP_PUBLISHERS_MAX 8192u

#define KVP_TROUBLE_MAX 4352u /* size of the text from kvp_registry_trouble, in bytes */

typedef struct kvp_registry kvp_registry_t;

/* kvp_registry_create makes a registry. data_dir is borrowed; NULL = registrations are not saved. Errors: NOMEM;
 * SYS (the data directory cannot be used), CORRUPT (its file is not a list of registrations), both logged. */
kvp_err_t kvp_registry_create(uv_loop_t *uv, uint64_t hash_seed, uint32_t blocks_max, const char *data_dir,
                              kvp_registry_t **out) KVP_MUST_USE;
/* kvp_registry_stop closes all sockets and handles, which takes a turn of the loop. kvp_registry_destroy frees the
 * registry after the loop has ended. */
void kvp_registry_stop(kvp_registry_t *r);
void kvp_registry_destroy(kvp_registry_t *r);

/* kvp_registry_add adds a publisher and subscribes to its events. A publisher with the same key is replaced, unless
 * all fields are equal. Errors, with the reason in *why_out: INVALID (ZMQ refuses the endpoint), HELD (another
 * publisher has bound the endpoint), SYS, all logged; LIMIT, NOMEM, not logged. kvp_registry_remove removes the
 * publisher of the key, or returns NOT_FOUND. kvp_registry_load adds the publishers of a JSON file, the file of
 * --publishers. */
kvp_err_t kvp_registry_add(kvp_registry_t *r, const kvp_registration_t *what, char why_out[160]) KVP_MUST_USE;
kvp_err_t kvp_registry_remove(kvp_registry_t *r, const kvp_registration_t *key) KVP_MUST_USE;
kvp_err_t kvp_registry_load(kvp_registry_t *r, const char *path) KVP_MUST_USE;

/* kvp_registry_is_kept waits at most 2 s until all changes are saved in the data directory, and returns whether
 * they are; true without a directory. Any thread except the loop's may call it. kvp_registry_trouble returns true,
 * with the reason in text, if the data directory cannot be written. Any thread may call it. */
bool kvp_registry_is_kept(kvp_registry_t *r);
bool kvp_registry_trouble(const kvp_registry_t *r, char *text, size_t cap);

/* kvp_registry_is_ready returns true once each publisher registered at the start has been replayed or cannot be
 * replayed. It then stays true. Any thread may call it. */
bool kvp_registry_is_ready(const kvp_registry_t *r);
/* kvp_registry_write_unreachable writes the field `unreachable`: an array of the publishers with an endpoint that
 * cannot be reached. */
void kvp_registry_write_unreachable(const kvp_registry_t *r, kvp_jsonw_t *w);
/* kvp_registry_write_why writes the field `why`, a list of texts, if there is trouble. Any thread may call it. */
void kvp_registry_write_why(const kvp_registry_t *r, kvp_jsonw_t *w);
void kvp_registry_write_services(const kvp_registry_t *r, kvp_jsonw_t *w); /* writes a JSON array of all publishers */
/* writes fields of a JSON object: the number of blocks in the index, and of each publisher, with its state */
void kvp_registry_write_view(const kvp_registry_t *r, kvp_jsonw_t *w);
void kvp_registry_write_metrics(const kvp_registry_t *r, kvp_buf_t *out);

/* kvp_registry_enter begins an epoch for the calling thread, which may be any thread; kvp_epoch_leave ends it. The
 * next three functions are called inside an epoch. kvp_registry_roster returns the publishers of engines, sorted
 * by instance and rank. kvp_registry_match is kvp_match, with the tenant and the texts of the query in `space`.
 * kvp_registry_has_lora returns true if a namespace in use has the model and the adapter. */
kvp_epoch_reader_t *kvp_registry_enter(kvp_registry_t *r);
const kvp_roster_t *kvp_registry_roster(const kvp_registry_t *r);
bool kvp_registry_match(const kvp_registry_t *r, const kvp_namespace_t *space, const char *instance,
                        const uint64_t *hashes, size_t n, kvp_match_scratch_t *scratch,
                        const kvp_answer_t **answers_out, uint32_t *n_out) KVP_MUST_USE;
bool kvp_registry_has_lora(const kvp_registry_t *r, const char *model, const char *lora);
uint64_t kvp_registry_hash_seed(const kvp_registry_t *r);

#endif
