/* SPDX-License-Identifier: Apache-2.0
 * Threads that nobody waits for by their number: they say themselves when they are done.
 */
#ifndef KVP_COMMON_DETACH_H
#define KVP_COMMON_DETACH_H

#include "common/base.h"

/* kvp_detach starts a thread that takes no signals: these are the program's. False, with errno: there is none. */
bool kvp_detach(void *(*fn)(void *), void *arg) KVP_MUST_USE;

#endif
