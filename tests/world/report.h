/* SPDX-License-Identifier: Apache-2.0
 * What a node of the test's world does for a master that does not know its memory: terms, and the report. Its memory
 * is as clients left it with write_object. */
#ifndef KVP_TESTS_WORLD_REPORT_H
#define KVP_TESTS_WORLD_REPORT_H

#include "tests/world/world.h"

/* mem_see_term: what older terms granted and is not SEALED is DEAD from now on, where it is a higher one. */
void mem_see_term(mem_t *mem, uint32_t term);

/* One record of a report, as it lies in the memory; a test may change it before it is sent. */
typedef struct {
    kvp_wire_extent_t rec;
    kvp_desc_t desc;
    char key[KVP_KEY_MAX + 1];
} extent_t;

/* mem_sealed lists what is SEALED, as a node does: by chunk and offset. Returned to be freed. */
extent_t *mem_sealed(const mem_t *mem, uint32_t *n_out);

/* report_send sends a page, report_take obeys the answer. False where the master closed the connection instead. */
uint64_t report_send(peer_t *n, const extent_t *extents, uint32_t count, bool is_last);
bool report_take(peer_t *n, uint64_t id, const extent_t *extents, uint32_t count);
bool report_end(peer_t *n); /* the last page, which has no records */
/* node_report: all of it, in pages of a few records. */
void node_report(peer_t *n);

#endif
