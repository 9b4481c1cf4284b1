/* SPDX-License-Identifier: Apache-2.0 */
#include "client/api/verify.h"

#include "client/kvpool.h"
#include "net/calls.h"

#include <stdlib.h>
#include <string.h>

kvp_err_t
kvp_verify_read(char *detail, size_t cap, uint32_t *verify)
{
    const char *text = getenv("KVPOOL_VERIFY");

    if (text == NULL || text[0] == '\0' || strcmp(text, "auto") == 0) return KVP_OK;
    if (strcmp(text, "payload") == 0)
        *verify = KVPOOL_VERIFY_PAYLOAD;
    else if (strcmp(text, "adapters") == 0)
        *verify = KVPOOL_VERIFY_ADAPTERS;
    else
        return kvp_refuse(detail, cap, KVP_INVALID, "KVPOOL_VERIFY",
                          "\"payload\", \"adapters\" or \"auto\" is expected");
    return KVP_OK;
}
