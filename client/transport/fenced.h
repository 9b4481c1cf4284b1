/* SPDX-License-Identifier: Apache-2.0
 * Which client incarnations are refused: those fenced one by one, and all below live_min. Not thread-safe: the owner
 * locks.
 */
#ifndef KVP_CLIENT_TRANSPORT_FENCED_H
#define KVP_CLIENT_TRANSPORT_FENCED_H

#include "common/base.h"

/* The zero value is an empty set. */
typedef struct {
    uint64_t live_min; /* never falls */
    uint64_t *list; /* ascending, all >= live_min */
    size_t n;
    size_t cap;
} kvp_fenced_t;

void kvp_fenced_fini(kvp_fenced_t *f);
/* kvp_fenced_add refuses the incarnation from now on; it cannot fail. Those below live_min are dropped from the list,
 * since they are refused anyway: it never holds more than the clients that died while an older one lived. Out of
 * memory, everybody up to the incarnation is refused: nobody's bytes land that must not. */
void kvp_fenced_add(kvp_fenced_t *f, uint64_t incarnation, uint64_t live_min);
bool kvp_fenced_has(const kvp_fenced_t *f, uint64_t incarnation);

#endif
