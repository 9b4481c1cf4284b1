/* SPDX-License-Identifier: Apache-2.0
 * A small HTTP client for one request to a daemon of this project. */
#ifndef KVP_TOOLS_BASE_HTTP_H
#define KVP_TOOLS_BASE_HTTP_H

#include "common/base.h"
#include "common/parse.h"
#include "common/trust/identity.h"

#include <json-c/json.h>
#include <time.h>

/* kvp_cli_http requests the path from `at` (HOST:PORT, or https://HOST:PORT): POST with the body, or GET if body is
 * NULL. With TLS the server proves by its certificate that it is a daemon of the role; KVP_MAY_NOTHING = any.
 * *answer_out is the JSON of the answer, which the caller releases with json_object_put; NULL if the answer is not
 * JSON. Errors: INVALID (at), UNREACHABLE (also after 5 s of silence), PROTO (not HTTP), INTERNAL (a status other than
 * 200), LIMIT (more than 64 MiB). *why_out is set for UNREACHABLE; the text is valid until the next call. *date_out,
 * unless date_out is NULL, is the server's clock when it answered, in whole seconds since 1970; 0 = not in the answer.
 */
kvp_err_t kvp_cli_http(const char *at, kvp_authrole_t role, const char *path, const char *body,
                       struct json_object **answer_out, const char **why_out, time_t *date_out) KVP_MUST_USE;

/* kvp_cli_http_text does the same for a GET whose answer is plain text. The caller frees *text_out, which is NULL after
 * an error. */
kvp_err_t kvp_cli_http_text(const char *at, kvp_authrole_t role, const char *path, char **text_out,
                            const char **why_out) KVP_MUST_USE;

/* kvp_cli_http_of writes the address of a master's HTTP port; `master` is an element of "masters" in the answer of
 * kvpool_stat. If the port listens on all addresses, the host is that of the master. Returns false if the master has no
 * such port, or only at a loopback address of another host. */
bool kvp_cli_http_of(struct json_object *master, char at[KVP_HTTP_TEXT_MAX]);

#endif
