/* SPDX-License-Identifier: Apache-2.0
 * What the end-to-end programs share: objects whose bytes tell which object, which version and which place they are,
 * and small helpers around the public API. Everything may be called from any thread. */
#ifndef KVP_E2E_UTIL_H
#define KVP_E2E_UTIL_H

#include "client/kvpool.h"

#include <stdbool.h>
#include <stdio.h>

#define E2E_MIN_BYTES 16u /* shorter objects do not carry their version */

uint64_t e2e_now_ns(void); /* CLOCK_MONOTONIC */

/* e2e_runnable_ns is the same less the time in which this thread was ready to run and another one had the processor:
 * what deadlines are kept in. Two of one thread may be compared, and a busy machine does not make their difference
 * longer. It is the plain clock where the kernel does not tell. */
uint64_t e2e_runnable_ns(void);
uint64_t e2e_random(uint64_t *state); /* the state is any number but 0 */
uint64_t e2e_hash(const void *key, size_t len);

/* e2e_fill writes the bytes of one version of an object: every word depends on key, version, length and its place, so
 * that bytes of another object, of another version or from another place are seen. */
void e2e_fill(void *buf, size_t len, uint64_t key_hash, uint64_t version);

/* e2e_check reads the version out of the bytes and says whether all of them belong to it; *at_out is the first byte
 * that does not. */
bool e2e_check(const void *buf, size_t len, uint64_t key_hash, uint64_t *version_out, size_t *at_out);

/* e2e_size gives an object its length, in [min, max] and in every power of two alike. */
size_t e2e_size(uint64_t key_hash, uint64_t version, size_t min, size_t max);

/* e2e_alloc maps zeroed memory, or ends the program. */
void *e2e_alloc(size_t len);

/* e2e_die ends the program with exit code 2 and a line on standard error. */
void e2e_die(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* e2e_json_text writes a JSON string. */
void e2e_json_text(FILE *to, const char *text);

/* Results by error number. */
#define E2E_ERRORS 128
typedef struct {
    uint64_t by_err[E2E_ERRORS]; /* index: the negative of the number */
} e2e_counts_t;

void e2e_count(e2e_counts_t *counts, int err);
void e2e_json_counts(FILE *to, const e2e_counts_t *counts); /* {"OK":3,...} */

#endif
