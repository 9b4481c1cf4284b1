/* SPDX-License-Identifier: Apache-2.0
 * Standard descriptors for programs. Not for the library: its host's descriptors are its host's.
 */
#ifndef KVP_COMMON_STDFD_H
#define KVP_COMMON_STDFD_H

/* kvp_stdfd_hold makes sure that 0, 1 and 2 are taken, before a program opens anything: a
 * supervisor may have closed them, and the next socket or segment would get one of those numbers,
 * then be read as input or written log lines to. What was closed stays closed in effect: reading
 * standard input or writing standard output fails with EBADF; standard error is thrown away. */
void kvp_stdfd_hold(void);

#endif
