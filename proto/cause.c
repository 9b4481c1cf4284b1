/* SPDX-License-Identifier: Apache-2.0
 * The names of causes. */
#include "proto/cause.h"

const char *
kvp_cause_name(uint32_t cause)
{
    static const char *const names[KVP_CAUSES_N] = {
#define KVP_CAUSE_TEXT(id, number, name) [number] = (name),
        KVP_CAUSES(KVP_CAUSE_TEXT)
#undef KVP_CAUSE_TEXT
    };

    return cause < KVP_CAUSES_N ? names[cause] : "unknown";
}
