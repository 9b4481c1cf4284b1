/* SPDX-License-Identifier: Apache-2.0 */
#include "node/keeper/wire.h"

#include <stdio.h>
#include <string.h>

kvp_keeper_msg_t
kvp_keeper_msg_make(kvp_keeper_kind_t kind, uint32_t fds_n, const char *name)
{
    kvp_keeper_msg_t msg = {
        .magic = KVP_KEEPER_MAGIC, .version = KVP_KEEPER_VERSION, .kind = (uint8_t)kind, .fds_n = (uint8_t)fds_n};

    if (name != NULL) snprintf(msg.name, sizeof msg.name, "%s", name);
    return msg;
}

/* Returns whether a message has the number of file descriptors, the name and the fields that its kind needs. */
static bool
has_right_parts(const kvp_keeper_msg_t *m)
{
    bool is_named = m->name[0] != '\0';

    switch (m->kind) {
    case KVP_KEEPER_HELLO:
        return m->fds_n == 1 && is_named && m->hold_ms <= KVP_KEEPER_HOLD_MAX_MS && m->is_new <= 1;
    case KVP_KEEPER_WELCOME:
        return m->fds_n == 0 && m->err <= 0 && m->total <= KVP_KEEPER_FILES_MAX && m->writers <= KVP_KEEPER_WRITERS_MAX;
    case KVP_KEEPER_FILES:
        return m->fds_n > 0 && m->fds_n <= KVP_KEEPER_FDS_MAX && m->total <= KVP_KEEPER_FILES_MAX &&
               m->first <= m->total && m->fds_n <= m->total - m->first;
    case KVP_KEEPER_WRITER:
        return m->fds_n == 1 && m->process != 0 && m->incarnation != 0;
    case KVP_KEEPER_OVER:
        return m->fds_n == 0 && m->process != 0;
    case KVP_KEEPER_DROP:
        return m->fds_n == 0 && m->is_new <= 1;
    case KVP_KEEPER_END:
        return m->fds_n == 0 && m->is_new == 0;
    case KVP_KEEPER_ASK:
        return m->fds_n == 0;
    default:
        return false;
    }
}

kvp_err_t
kvp_keeper_msg_check(const void *bytes, size_t len, size_t fds_n, kvp_keeper_msg_t *msg_out)
{
    kvp_keeper_msg_t m = {.magic = 0};

    memcpy(&m, bytes, kvp_min_u64(len, sizeof m));
    if (len < offsetof(kvp_keeper_msg_t, fds_n) || m.magic != KVP_KEEPER_MAGIC) return KVP_PROTO;
    if (m.version != KVP_KEEPER_VERSION) return KVP_VERSION;
    if (len != sizeof m || m.fds_n != fds_n || strnlen(m.name, sizeof m.name) > KVP_NAME_MAX || !has_right_parts(&m))
        return KVP_PROTO;
    *msg_out = m;
    return KVP_OK;
}
