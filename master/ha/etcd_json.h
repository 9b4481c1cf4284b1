/* SPDX-License-Identifier: Apache-2.0
 * Requests to etcd and its answers, as JSON of etcd's gateway (64-bit numbers are texts, keys and values are base64).
 * Pure functions: etcd.c moves the bytes. Answers are not trusted: decoding uses bounded memory for any contents. */
#ifndef KVP_MASTER_HA_ETCD_JSON_H
#define KVP_MASTER_HA_ETCD_JSON_H

#include "common/buf.h"
#include "master/ha/etcd.h"

#define KVP_ETCD_ANSWER_BYTES_MAX (1u << 20) /* limit of etcd's answer in bytes; a longer answer is the error PROTO */
#define KVP_ETCD_TOKEN_MAX 4096u

/* The kvp_etcd_encode functions append the body of a request to etcd, and return its URL path (static storage). */
const char *kvp_etcd_encode(const kvp_etcd_op_t *op, const char *prefix, kvp_buf_t *out);
const char *kvp_etcd_encode_login(const char *user, const char *password, kvp_buf_t *out);
const char *kvp_etcd_encode_watch(const char *prefix, kvp_buf_t *out);

/* Why an answer is an error. */
typedef struct {
    bool is_token_bad; /* flag: another login may help */
    char why[256]; /* etcd's text, for the log */
} kvp_etcd_fault_t;

/* kvp_etcd_decode reads the answer to an op of answer_io->kind, and sets answer_io->err as described in etcd.h: OK,
 * NOT_FOUND, FENCED, UNREACHABLE (reported by etcd), PROTO. status is the HTTP status. kvp_etcd_answer_fini frees the
 * answer's memory. */
void kvp_etcd_decode(long status, const kvp_buf_t *body, kvp_etcd_answer_t *answer_io, kvp_etcd_fault_t *fault_out);

/* kvp_etcd_decode_login returns the token, which the caller frees; "" if authentication is disabled in etcd. FENCED,
 * UNREACHABLE, PROTO. */
kvp_err_t kvp_etcd_decode_login(long status, const kvp_buf_t *body, char **token_out, kvp_etcd_fault_t *fault_out)
    KVP_MUST_USE;

/* kvp_etcd_decode_watch reads one message of a watch: whether the watch is established, and whether keys have
 * changed. After an error the watch has ended. */
kvp_err_t kvp_etcd_decode_watch(const kvp_buf_t *message, bool *is_created_out, bool *is_change_out,
                                kvp_etcd_fault_t *fault_out) KVP_MUST_USE;

#endif
