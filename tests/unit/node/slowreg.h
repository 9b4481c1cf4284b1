/* SPDX-License-Identifier: Apache-2.0
 * The transport "tcp", here "slow", with registrations, and keys of writers, that take as long as the test wants:
 * each waits at a gate, is noted, and fails where the test says so. There is one gate, for one test at a time. */
#ifndef KVP_TEST_SLOWREG_H
#define KVP_TEST_SLOWREG_H

#include "transport/transport.h"

/* slow_reg_reset shuts the gate and forgets everything; the table is constant. */
const kvp_transport_ops_t *slow_reg_reset(void);

/* slow_reg_let lets so many registrations more pass; slow_reg_open lets all pass from now on; shut none again. */
void slow_reg_let(uint32_t n);
void slow_reg_open(void);
void slow_reg_shut(void);

/* slow_reg_fail: memory that begins there is not registered, with that error. */
void slow_reg_fail(const void *addr, kvp_err_t err);

/* slow_reg_exports: from now on each export takes so long; returns how many were made since reset. */
uint32_t slow_reg_exports(uint32_t each_ms);

/* slow_reg_granted: keys of writers that there are. */
uint32_t slow_reg_granted(void);

/* slow_reg_await waits until n registrations have come to the gate; begun: how many have, and where the i-th one's
 * memory begins. */
void slow_reg_await(uint32_t n);
uint32_t slow_reg_begun(void);
const void *slow_reg_at(uint32_t i);

#endif
