/* SPDX-License-Identifier: Apache-2.0
 * Protects the standard descriptors of a program. A library must not call this, because its host program owns the
 * descriptors. */
#ifndef KVP_COMMON_STDFD_H
#define KVP_COMMON_STDFD_H

/* kvp_stdfd_hold opens /dev/null for each of the descriptors 0, 1 and 2 that is closed; call it before the program
 * opens anything. A supervisor may have closed them, and the next socket or segment would get such a number, and
 * would be read as input or receive log lines. Reading this standard input or writing this standard output fails
 * with EBADF; writes to this standard error are dropped. */
void kvp_stdfd_hold(void);

#endif
