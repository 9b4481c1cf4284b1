/* SPDX-License-Identifier: Apache-2.0
 * A client of etcd v3 by its JSON gateway, over libcurl. One thread ("kvp-etcd") makes the requests, several at a
 * time, and watches a prefix. The client makes no decisions: each request is made once, at the endpoint that answered
 * last. A request that fails, or takes longer than request_ns, moves later requests to the next endpoint, and its
 * answer has the error. The caller repeats it. */
#ifndef KVP_MASTER_HA_ETCD_H
#define KVP_MASTER_HA_ETCD_H

#include "common/base.h"

/* Limits of keys and values. Keys and values of other writers are skipped if they are longer, or not text. */
#define KVP_ETCD_KEY_MAX 319u
#define KVP_ETCD_VALUE_MAX 4095u
#define KVP_ETCD_KVS_MAX 64u /* limit of the keys in an answer; more are left out */
#define KVP_ETCD_COMPARES_MAX 4u
#define KVP_ETCD_WRITES_MAX 4u

typedef struct kvp_etcd kvp_etcd_t;

typedef enum {
    KVP_ETCD_GRANT, /* makes a lease of ttl_s seconds */
    KVP_ETCD_KEEP_ALIVE, /* renews the lease: the answer has its remaining time in ttl_s; NOT_FOUND: it has expired */
    KVP_ETCD_REVOKE, /* revokes the lease; OK also if it has expired */
    KVP_ETCD_READ, /* reads all keys with the prefix conf.prefix */
    KVP_ETCD_TXN, /* does the writes if all comparisons hold: has_succeeded has the result */
} kvp_etcd_kind_t;

typedef struct {
    char key[KVP_ETCD_KEY_MAX + 1];
    char value[KVP_ETCD_VALUE_MAX + 1]; /* text */
    int64_t create_revision, mod_revision;
    int64_t lease; /* lease to which the key is attached; 0 = none */
    bool is_removal; /* flag of a write: the key is deleted */
} kvp_etcd_kv_t;

typedef struct {
    char key[KVP_ETCD_KEY_MAX + 1];
    bool is_mod; /* flag: compares the revision of the key's last change, otherwise of its creation */
    int64_t revision; /* expected revision; 0 = the key does not exist */
} kvp_etcd_compare_t;

typedef struct {
    kvp_etcd_kind_t kind;
    uint64_t id; /* id of the request, chosen by the caller and repeated in the answer */
    int64_t lease;
    uint32_t ttl_s;
    uint32_t compares_n, writes_n;
    kvp_etcd_compare_t compares[KVP_ETCD_COMPARES_MAX];
    kvp_etcd_kv_t writes[KVP_ETCD_WRITES_MAX];
} kvp_etcd_op_t;

typedef struct kvp_etcd_answer {
    struct kvp_etcd_answer *next; /* link for the receiver's queue */
    kvp_etcd_kind_t kind;
    uint64_t id;
    /* Result of the request: OK; UNREACHABLE or DEADLINE (etcd may have done the request all the same); NOT_FOUND;
     * FENCED (wrong user, password or certificate); PROTO. */
    kvp_err_t err;
    uint64_t sent_ns; /* kvp_boot_ns() before the request was sent */
    int64_t lease;
    uint32_t ttl_s;
    /* revision of the store at the time of the answer; for a successful TXN: revision of its writes */
    int64_t revision;
    bool has_succeeded;
    uint32_t kvs_n;
    kvp_etcd_kv_t *kvs; /* keys of a READ; freed by kvp_etcd_answer_fini */
} kvp_etcd_answer_t;

void kvp_etcd_answer_fini(kvp_etcd_answer_t *answer);

typedef struct {
    /* At most 16 addresses of etcd: "http://HOST:PORT,https://HOST:PORT"; without a scheme http is used. Copied, as all
     * strings are. */
    const char *endpoints;
    const char *prefix; /* prefix of the keys for READ and for the watch; not empty */
    /* files for TLS; NULL = the system's CA certificates, no client certificate */
    const char *ca_file, *cert_file, *key_file;
    const char *user, *password; /* NULL = none */
    uint64_t request_ns; /* time limit of one request, and half of it for KEEP_ALIVE; 0 = 500 ms */
    /* Callbacks in etcd's thread. on_answer takes the answer, and frees it with kvp_etcd_answer_fini. on_change: a
     * key with the prefix has changed, or may have changed while the watch was interrupted. */
    void (*on_answer)(void *arg, kvp_etcd_answer_t *answer);
    void (*on_change)(void *arg);
    void *arg;
} kvp_etcd_conf_t;

/* kvp_etcd_create starts the thread; etcd need not run yet. INVALID (endpoints, unreadable files), NOMEM, SYS; logged.
 * kvp_etcd_destroy ends the thread within request_ns, without further answers; NULL is ignored. */
kvp_err_t kvp_etcd_create(const kvp_etcd_conf_t *conf, kvp_etcd_t **etcd_out) KVP_MUST_USE;
void kvp_etcd_destroy(kvp_etcd_t *etcd);

/* kvp_etcd_ask queues a copy of the request, and does not block. Each request is answered once. Any thread. */
void kvp_etcd_ask(kvp_etcd_t *etcd, const kvp_etcd_op_t *op);

/* kvp_etcd_stats returns the numbers of requests made, and of failed requests. Any thread. */
void kvp_etcd_stats(const kvp_etcd_t *etcd, uint64_t *requests_out, uint64_t *failures_out);
/* kvp_etcd_silence returns the nanoseconds since the last successful request, and the text of the last failure ("" =
 * none yet). Any thread. */
#define KVP_ETCD_TROUBLE_MAX 200u
uint64_t kvp_etcd_silence(kvp_etcd_t *etcd, char trouble_out[KVP_ETCD_TROUBLE_MAX]);

#endif
