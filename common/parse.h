/* SPDX-License-Identifier: Apache-2.0
 * Parses texts that people write: sizes, durations, addresses. The option table and the library's
 * own options use the same functions, so "4GiB" means the same everywhere. Pure functions; any
 * thread. All return INVALID for a text in another form. */
#ifndef KVP_COMMON_PARSE_H
#define KVP_COMMON_PARSE_H

#include "common/base.h"

#define KVP_HOST_MAX 256u

typedef struct {
    char host[KVP_HOST_MAX]; /* without brackets; empty = unset */
    uint16_t port;
} kvp_hostport_t;

/* kvp_parse_u64 reads decimal digits only: no sign, no space, no overflow. */
kvp_err_t kvp_parse_u64(const char *text, uint64_t *value_out) KVP_MUST_USE;

/* kvp_parse_bytes reads a whole number with an optional unit, B, KB MB GB TB (powers of 1000) or
 * KiB MiB GiB TiB (powers of 1024), in any case and without a space: "4GiB", "16MB", "4096". */
kvp_err_t kvp_parse_bytes(const char *text, uint64_t *bytes_out) KVP_MUST_USE;

/* kvp_parse_duration_ns reads a whole number with a unit, ns us ms s m h or d: "10s", "50ms". Only 0 may go without. */
kvp_err_t kvp_parse_duration_ns(const char *text, uint64_t *ns_out) KVP_MUST_USE;

/* kvp_parse_hostport reads "HOST:PORT", with an IPv6 address in brackets: "[::1]:80". The host is a name or an address
 * and is not resolved. Port 0 is legal and means any free port. */
kvp_err_t kvp_parse_hostport(const char *text, kvp_hostport_t *at_out) KVP_MUST_USE;

/* kvp_parse_hostports reads one to max addresses, separated by commas. LIMIT for more. */
kvp_err_t kvp_parse_hostports(const char *text, kvp_hostport_t *at_out, size_t max, size_t *n_out) KVP_MUST_USE;

/* Prefix of a list that names etcd's members instead of masters; etcd lists the masters
 * (net/discover.h). */
#define KVP_ETCD_SCHEME "etcd://"

/* kvp_format_hostport writes what kvp_parse_hostport reads, and returns dst. */
#define KVP_HOSTPORT_TEXT_MAX (KVP_HOST_MAX + 8u)
const char *kvp_format_hostport(const kvp_hostport_t *at, char dst[KVP_HOSTPORT_TEXT_MAX]);

/* kvp_hostport_is_loopback: only this host can reach a listener at the address. Names are not
 * resolved; of names only "localhost" counts. */
bool kvp_hostport_is_loopback(const kvp_hostport_t *at);

/* kvp_listen_fix returns advice for a failed bind with errno no: " (...)", or empty. Static
 * storage. */
const char *kvp_listen_fix(int no);

/* kvp_is_listed returns whether name is an entry of the comma-separated list. */
bool kvp_is_listed(const char *list, const char *name);

/* kvp_is_zmq_endpoint returns whether text is tcp://HOST:PORT, with a port of 0 to 65535 or "*", or
 * ipc://NAME. ZMQ itself would take ports modulo 65536. */
bool kvp_is_zmq_endpoint(const char *text);

#endif
