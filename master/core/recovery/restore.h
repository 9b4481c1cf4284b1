/* SPDX-License-Identifier: Apache-2.0
 * Ticket restore: sessions come with the tickets of the master before.
 */
#ifndef KVP_MASTER_CORE_RECOVERY_RESTORE_H
#define KVP_MASTER_CORE_RECOVERY_RESTORE_H

#include "master/core/catalog/index.h"
#include "master/core/session/session.h"

/* kvp_present_expect: this master took over just now, and sessions may come with tickets of the one before;
 * kvp_present_reported: and with those on what that report has brought. kvp_present_may_come: they still may;
 * kvp_present_may_name: for that object. */
void kvp_present_expect(kvp_master_t *m);
void kvp_present_reported(kvp_master_t *m);
bool kvp_present_may_come(const kvp_master_t *m);
bool kvp_present_may_name(const kvp_master_t *m, const kvp_obj_t *o);
void kvp_on_present(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

#endif
