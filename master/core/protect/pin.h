/* SPDX-License-Identifier: Apache-2.0
 * Pins, soft and hard.
 */
#ifndef KVP_MASTER_CORE_PROTECT_PIN_H
#define KVP_MASTER_CORE_PROTECT_PIN_H

#include "master/core/protect/protection.h"
#include "master/core/catalog/index.h"
#include "master/core/base/conf.h"

/* kvp_pin_count: a pinned object has so many bytes more in extents, or fewer. */
void kvp_pin_count(kvp_protect_t *prot, const kvp_obj_t *o, int64_t bytes);
void kvp_pin_lose(kvp_protect_t *prot, kvp_obj_t *o); /* its pin */
bool kvp_pin_is_over(const kvp_protect_t *prot); /* some pins are to be lost */
void kvp_pin_trim(kvp_protect_t *prot); /* removes them, a slice at a time */

#endif
