/* SPDX-License-Identifier: Apache-2.0
 * Put attempts: writes of objects that were begun and have not ended. */
#ifndef KVP_MASTER_CORE_PUT_ATTEMPT_H
#define KVP_MASTER_CORE_PUT_ATTEMPT_H

#include "common/list.h"
#include "master/core/put/puts.h"
#include "master/core/catalog/staged.h"
#include "master/core/session/session.h"
#include "proto/wire.h"

typedef struct kvp_put_req kvp_put_req_t;
typedef struct kvp_deferred kvp_deferred_t;

#define KVP_ATTEMPTS_MAX 262144u /* limit of the attempts of all clients together: about 150 MB of memory */

kvp_attempt_t *kvp_attempt_find(const kvp_puts_t *pq, const kvp_session_t *s, uint64_t id); /* NULL = none */
kvp_attempt_t *kvp_attempt_open(kvp_puts_t *pq, kvp_put_req_t *p, uint32_t at, const kvp_wire_put_t *put,
                                const kvp_wire_group_t *group, uint32_t oid);
void kvp_attempt_close(kvp_puts_t *pq, kvp_attempt_t *a); /* frees the attempt; its object stays */
/* kvp_attempt_take aborts the attempt if its writer's session has ended or was silent too long, so that another
 * writer can put the key. Returns false if the attempt continues. */
bool kvp_attempt_take(kvp_puts_t *pq, kvp_attempt_t *a);
/* kvp_put_note_refused records that a put was refused; id is the key's id in the index. */
void kvp_put_note_refused(kvp_puts_t *pq, uint64_t id, kvp_err_t err);
/* kvp_attempt_abort ends the attempt and removes its object. If its PutBegin message is not answered yet, the
 * answer has the error err for the key. */
void kvp_attempt_abort(kvp_puts_t *pq, kvp_attempt_t *a, bool is_drained, kvp_err_t err);
/* kvp_attempt_refuse ends an attempt whose commit is refused; the deferred reply is sent when the attempt's extents are
 * unreadable, or after a time limit. */
void kvp_attempt_refuse(kvp_puts_t *pq, kvp_attempt_t *a, bool is_drained, kvp_deferred_t *deferred);
/* kvp_attempt_void ends an attempt whose key turned out to be committed, or whose digest belongs to another key; its
 * client gets err. */
void kvp_attempt_void(kvp_puts_t *pq, kvp_attempt_t *a, kvp_err_t err);
/* Returns the incarnation of the writer that may still write to the attempt's extents; 0 = none: its writes are
 * drained, or its PutBegin is unanswered, so the writer does not know the extents. */
uint64_t kvp_attempt_owner(const kvp_attempt_t *a, bool is_drained);
void kvp_attempt_lose_copy(kvp_puts_t *pq, uint32_t oid, const kvp_place_t *at); /* the memory of the copy is lost */
/* aborts an attempt of an ended session; frees its unanswered PutBegin message with the message's last attempt */
void kvp_attempt_abort_over(kvp_puts_t *pq, kvp_attempt_t *a);

#endif
