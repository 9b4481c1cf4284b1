/* SPDX-License-Identifier: Apache-2.0
 * Shared by the verbs with keys: one operand, and the output about a key, for people or as JSON. */
#ifndef KVP_TOOLS_VERBS_KEY_H
#define KVP_TOOLS_VERBS_KEY_H

#include "tools/base/cli.h"

#include <stdio.h>

#define KVP_CLI_QUOTED_MAX (4 * KVPOOL_KEY_MAX + 1)

/* kvp_cli_one_key is KVP_EXIT_GO_ON where exactly one operand stands at argv[first], else the exit code after a
 * complaint. */
int kvp_cli_one_key(const kvp_cli_verb_t *verb, int argc, int first);

/* kvp_cli_fail_key complains about a key and returns the error's exit code; with --json the error
 * goes to standard output instead, or to standard error where that belongs to a value. */
int kvp_cli_fail_key(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, const void *key, size_t len, int err);

/* kvp_cli_fetch gets the value into memory of its size, which the caller frees after OK (data.c). */
int kvp_cli_fetch(kvpool_t *pool, const void *key, size_t key_len, uint8_t **value_out, size_t *len_out);

/* kvp_cli_say_bytes reports a value that was moved; without --json success is silent. */
void kvp_cli_say_bytes(const kvp_cli_common_t *common, const char *key, size_t len, FILE *to);

#endif
