/* SPDX-License-Identifier: Apache-2.0
 * Time and work of a step: a step is what the core does for one input.
 */
#ifndef KVP_MASTER_CORE_BASE_STEP_H
#define KVP_MASTER_CORE_BASE_STEP_H

#include <stdint.h>

#define KVP_MS(n) ((uint64_t)(n)*1000000u)
#define KVP_TICK_NS KVP_MS(10)
#define KVP_SLICE 1024u /* records that a step may touch for what can wait: kvp_master_spend */
#define KVP_STEP_WORK 8192u /* extents that the search for space looks at in one step */

#endif
