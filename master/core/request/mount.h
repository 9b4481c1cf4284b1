/* SPDX-License-Identifier: Apache-2.0
 * Mount, Unmount, Segments.
 */
#ifndef KVP_MASTER_CORE_REQUEST_MOUNT_H
#define KVP_MASTER_CORE_REQUEST_MOUNT_H

#include "master/core/session/session.h"

void kvp_on_mount(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_unmount(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_segments(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

#endif
