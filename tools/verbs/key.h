/* SPDX-License-Identifier: Apache-2.0
 * Functions for the verbs with keys: the check for one operand, and messages about a key, as text or JSON. */
#ifndef KVP_TOOLS_VERBS_KEY_H
#define KVP_TOOLS_VERBS_KEY_H

#include "tools/base/cli.h"

#include <stdio.h>

#define KVP_CLI_QUOTED_MAX (4 * KVPOOL_KEY_MAX + 1)

/* kvp_cli_one_key returns KVP_EXIT_GO_ON if argv[first] is the only operand. Otherwise it prints an error and
 * returns the exit code. */
int kvp_cli_one_key(const kvp_cli_verb_t *verb, int argc, int first);

/* kvp_cli_fail_key prints an error about a key and returns the error's exit code. With --json the error goes to
 * standard output, or to standard error if standard output is for a value. */
int kvp_cli_fail_key(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, const void *key, size_t len, int err);

/* kvp_cli_fetch gets the value into new memory of the value's size. After KVPOOL_OK the caller frees *value_out.
 * opts may be NULL. It is defined in data.c. */
int kvp_cli_fetch(kvpool_t *pool, const void *key, size_t key_len, const kvpool_opts_t *opts, uint8_t **value_out,
                  size_t *len_out);

/* kvp_cli_say_bytes reports the size of a moved value as JSON; without --json it prints nothing. */
void kvp_cli_say_bytes(const kvp_cli_common_t *common, const char *key, size_t len, FILE *to);

#endif
