/* SPDX-License-Identifier: Apache-2.0 */
#include "client/api/env.h"

#include "client/kvpool.h"
#include "common/log.h"
#include "common/parse.h"
#include "net/calls.h"

#include <stdlib.h>
#include <string.h>

kvp_err_t
kvp_env_log(char *detail, size_t cap)
{
    kvp_log_format_t format;

    if (!kvp_log_format_parse(getenv("KVPOOL_LOG_FORMAT"), &format))
        return kvp_refuse(detail, cap, KVP_INVALID, "KVPOOL_LOG_FORMAT", "\"text\" or \"json\" is expected");
    kvp_log_set_format(format);
    return KVP_OK;
}

kvp_err_t
kvp_env_slow_call(char *detail, size_t cap, uint64_t *ns_out)
{
    const char *text = getenv("KVPOOL_SLOW_CALL");

    if (kvp_parse_duration_ns(text != NULL && text[0] != '\0' ? text : "1s", ns_out) == KVP_OK) return KVP_OK;
    return kvp_refuse(detail, cap, KVP_INVALID, "KVPOOL_SLOW_CALL", "a time is expected, such as 1s or 500ms, or 0");
}

kvp_err_t
kvp_env_verify(char *detail, size_t cap, uint32_t *verify)
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
