/* SPDX-License-Identifier: Apache-2.0
 * libibverbs and librdmacm, as far as devices, registrations and the end of ids go, for a linker that puts them in
 * the place of the machine's (-Wl,--wrap=kvp_rdma_libs). Devices are removed and added by the test; what is done with
 * a context that was closed, or closed while something is left on it, ends the test. One at a time. */
#ifndef KVP_TEST_FAKEVERBS_H
#define KVP_TEST_FAKEVERBS_H

#include "transport/rdma/verbs/libs.h"

#define FAKE_DEVS_MAX 3u

typedef enum {
    FAKE_REG,
    FAKE_DEREG,
    FAKE_LEAVE, /* an id is ended */
    FAKE_KINDS,
} fake_call_t;

/* fake_verbs_begin: that many devices are there, "fake0" and so on; end: nothing may be left but what librdmacm has
 * open. */
void fake_verbs_begin(uint32_t devs);
void fake_verbs_end(void);

/* fake_verbs_leave takes away what begin left on the disk, where somebody keeps the devices open for good. */
void fake_verbs_leave(void);

void fake_verbs_remove(uint32_t dev);
void fake_verbs_add(uint32_t dev);

/* fake_verbs_fail has the driver say that the device failed for good, and refuse what is asked of it until it is added
 * again. */
void fake_verbs_fail(uint32_t dev);

/* fake_verbs_refuse: memory that begins there is not registered, with that errno; 0 = it is again. */
void fake_verbs_refuse(const void *addr, int no);

/* fake_verbs_shut makes calls of that kind wait at a gate; let: so many may pass, open: all. await waits until n have
 * come to it since begin, begun says how many have. */
void fake_verbs_shut(fake_call_t kind);
void fake_verbs_let(fake_call_t kind, uint32_t n);
void fake_verbs_open(fake_call_t kind);
void fake_verbs_await(fake_call_t kind, uint32_t n);
uint32_t fake_verbs_begun(fake_call_t kind);

/* Of a device: registrations that there are, by all of its contexts; and whether the context is open that was there
 * first, or came with its last add. */
uint32_t fake_verbs_regs(uint32_t dev);
bool fake_verbs_is_open(uint32_t dev);

/* fake_verbs_id makes one that is on no device. */
struct rdma_cm_id *fake_verbs_id(void);

#endif
