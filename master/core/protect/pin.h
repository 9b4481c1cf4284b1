/* SPDX-License-Identifier: Apache-2.0
 * Soft and hard pins of objects. */
#ifndef KVP_MASTER_CORE_PROTECT_PIN_H
#define KVP_MASTER_CORE_PROTECT_PIN_H

#include "master/core/protect/protection.h"
#include "master/core/catalog/index.h"
#include "master/core/base/conf.h"

/* kvp_pin_count adds the bytes, which may be negative, to the pinned bytes, if the object is pinned. */
void kvp_pin_count(kvp_protect_t *prot, const kvp_obj_t *o, int64_t bytes);
void kvp_pin_lose(kvp_protect_t *prot, kvp_obj_t *o); /* removes the object's pin */
bool kvp_pin_is_over(const kvp_protect_t *prot); /* soft pins exceed their budget */
void kvp_pin_trim(kvp_protect_t *prot); /* removes soft pins over the budget, in slices */

#endif
