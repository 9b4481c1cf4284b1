/* SPDX-License-Identifier: Apache-2.0
 * Memory that other processes may be handed the descriptor of: a memfd that can neither shrink nor grow, mapped. Any thread.
 */
#ifndef KVP_CLIENT_TRANSPORT_SHM_MEMFILE_H
#define KVP_CLIENT_TRANSPORT_SHM_MEMFILE_H

#include "client/transport/transport.h"

/* kvp_memfile_make makes a file of len bytes, zero, sealed, mapped at a multiple of a huge page where it has one, and not inherited by
 * forked children; name is for /proc. False: see errno; the caller drops it all the same. */
bool kvp_memfile_make(const char *name, uint64_t len, kvp_mem_t *mem_out) KVP_MUST_USE;

/* kvp_memfile_drop gives the pages back also where others map the file: what they store from then on is seen by nobody. Legal
 * on the empty value, {.fd = -1}, and leaves that. */
void kvp_memfile_drop(kvp_mem_t *mem);

#endif
