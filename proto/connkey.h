/* SPDX-License-Identifier: Apache-2.0
 * Keys as upstream's store connector makes them: [PREFIX@]MODEL[NAMESPACE]@tp_rank:T@pcpP@dcpD@pp_rank:R[@group:G]@HEX, one object a block and rank. HEX is the
 * block's hash, of which engines' events tell the last 64 bits. The pool makes nothing of them; event streams do.
 */
#ifndef KVP_PROTO_CONNKEY_H
#define KVP_PROTO_CONNKEY_H

#include "common/base.h"

typedef struct {
    size_t prefix_len; /* bytes in front of "@tp_rank:" */
    const char *
        ranks; /* "tp_rank:0@pcp0@dcp0@pp_rank:0", borrowed from the key; one without a group has the "@" behind it, too, so that no two keys are one part */
    size_t ranks_len;
    uint32_t group; /* 0 = the key names none */
    const char *hex; /* in lower case; borrowed */
    size_t hex_len; /* even, 16 or more */
    uint64_t hash; /* its last 16 digits */
} kvp_connkey_t;

/* kvp_connkey_read: false: it is no such key. */
bool kvp_connkey_read(const char *key, size_t len, kvp_connkey_t *out);

#endif
