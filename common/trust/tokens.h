/* SPDX-License-Identifier: Apache-2.0
 * Tokens: 32 random bytes, written as "kvp_" and 43 characters of base64url. A daemon knows only their SHA-256, from a
 * file with one line for each token (ADR 0051):
 *
 *     SHA256 ID ROLE NAME END
 *
 * SHA256: 64 hex digits, of the token's text. NAME: the tenant, or the name of a node or master; TENANT/NODE for an
 * engine. END: the end in UTC, such as 2027-01-31T12:00:00Z, or "never". Lines that begin with # and empty lines are
 * ignored. */
#ifndef KVP_COMMON_TRUST_TOKENS_H
#define KVP_COMMON_TRUST_TOKENS_H

#include "common/trust/identity.h"

#include <time.h>

#define KVP_TOKEN_TEXT_LEN 47u
#define KVP_TOKENS_MAX 8192u
#define KVP_TOKEN_FILE_MAX (4u << 20)
#define KVP_TOKENS_WHY_MAX 256u

typedef struct kvp_tokenfile kvp_tokenfile_t;

#pragma GCC visibility push(default)

/* kvp_tokenfile_parse reads the text of a token file. INVALID: a line is wrong; LIMIT: more than KVP_TOKENS_MAX lines;
 * NOMEM. why_out (KVP_TOKENS_WHY_MAX bytes) then names the line and the reason. Two tenants whose names have the same
 * hash are refused, because their keys could not be told apart. kvp_tokenfile_destroy accepts NULL. */
kvp_err_t kvp_tokenfile_parse(const char *text, size_t len, kvp_tokenfile_t **tokens_out, char *why_out) KVP_MUST_USE;
void kvp_tokenfile_destroy(kvp_tokenfile_t *tokens);
size_t kvp_tokenfile_count(const kvp_tokenfile_t *tokens);

/* kvp_tokenfile_load reads a token file if it differs from *stamp_io (zero at first), which it updates; *tokens_out is
 * NULL if the file is unchanged. After the first time, a file that changed in the second now_s of the epoch or in the
 * one before counts as unchanged, so that no half of a file that is written in place takes effect. Errors as for
 * kvp_tokenfile_parse, and SYS, once for each change of the file. INVALID also for a file that other users may write.
 * Blocks on the file. */
typedef struct {
    uint64_t inode, bytes, changed_ns;
} kvp_tokenfile_stamp_t;
kvp_err_t kvp_tokenfile_load(const char *path, time_t now_s, kvp_tokenfile_stamp_t *stamp_io,
                             kvp_tokenfile_t **tokens_out, char *why_out) KVP_MUST_USE;

/* kvp_tokenfile_find fills who_out with the identity of a token's text (len bytes), or with no role and the reason:
 * DENIED (unknown, or no token), EXPIRED (its end is not after now_s). */
void kvp_tokenfile_find(const kvp_tokenfile_t *tokens, const char *text, size_t len, uint64_t now_s,
                        kvp_identity_t *who_out);

/* kvp_tokenfile_has returns true if the table still has the token by which `who` was found, with the same role and
 * name.
 */
bool kvp_tokenfile_has(const kvp_tokenfile_t *tokens, const kvp_identity_t *who);

/* kvp_tokenfile_has_id returns true if a line has this id. tokens may be NULL. */
bool kvp_tokenfile_has_id(const kvp_tokenfile_t *tokens, const char *id);

/* kvp_token_create makes a token, and its line for the file (with a newline). end_s 0 = never. INVALID: a name is not
 * valid. SYS: no random bytes. */
kvp_err_t kvp_token_create(const char *id, kvp_authrole_t role, const char *name, uint64_t end_s,
                           char token_out[KVP_TOKEN_TEXT_LEN + 1], char *line_out, size_t line_cap) KVP_MUST_USE;

#pragma GCC visibility pop

#endif
