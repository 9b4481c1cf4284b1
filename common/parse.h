/* SPDX-License-Identifier: Apache-2.0
 * Parses texts that users write: sizes, durations, addresses. The daemons' options and the library's options use
 * the same functions, so "4GiB" has the same meaning everywhere. Pure functions; any thread. All return INVALID
 * for a text in another form. */
#ifndef KVP_COMMON_PARSE_H
#define KVP_COMMON_PARSE_H

#include "common/base.h"

#define KVP_HOST_MAX 256u

typedef struct {
    char host[KVP_HOST_MAX]; /* name or address of the host, without brackets; "" = unset */
    uint16_t port;
} kvp_hostport_t;

/* kvp_parse_u64 reads a decimal number: only digits, no sign, no space, no overflow. */
kvp_err_t kvp_parse_u64(const char *text, uint64_t *value_out) KVP_MUST_USE;

/* kvp_parse_bytes reads a whole number with an optional unit: B, KB MB GB TB (powers of 1000) or KiB MiB GiB TiB
 * (powers of 1024). The unit is in any case and without a space: "4GiB", "16MB", "4096". */
kvp_err_t kvp_parse_bytes(const char *text, uint64_t *bytes_out) KVP_MUST_USE;

/* kvp_parse_duration_ns reads a whole number with a unit, ns us ms s m h or d: "10s", "50ms". Only 0 needs no unit. */
kvp_err_t kvp_parse_duration_ns(const char *text, uint64_t *ns_out) KVP_MUST_USE;

/* kvp_parse_hostport reads "HOST:PORT". An IPv6 address is in brackets: "[::1]:80". The host is a name or an
 * address and is not resolved. Port 0 is legal and means any free port. */
kvp_err_t kvp_parse_hostport(const char *text, kvp_hostport_t *at_out) KVP_MUST_USE;

/* kvp_parse_hostports reads one to max addresses, separated by commas. LIMIT if there are more. */
kvp_err_t kvp_parse_hostports(const char *text, kvp_hostport_t *at_out, size_t max, size_t *n_out) KVP_MUST_USE;

/* Prefix of a list that names members of etcd instead of masters; etcd then knows the masters (net/discover.h). */
#define KVP_ETCD_SCHEME "etcd://"

/* kvp_format_hostport writes an address in the form of kvp_parse_hostport, and returns dst. */
#define KVP_HOSTPORT_TEXT_MAX (KVP_HOST_MAX + 8u)
const char *kvp_format_hostport(const kvp_hostport_t *at, char dst[KVP_HOSTPORT_TEXT_MAX]);

/* The same two for the address of an HTTP port: HOST:PORT, or https://HOST:PORT if the port has TLS. */
#define KVP_HTTP_TEXT_MAX (KVP_HOSTPORT_TEXT_MAX + 8u)
kvp_err_t kvp_parse_http(const char *text, kvp_hostport_t *at_out, bool *has_tls_out) KVP_MUST_USE;
const char *kvp_format_http(const kvp_hostport_t *at, bool has_tls, char dst[KVP_HTTP_TEXT_MAX]);

/* kvp_hostport_is_loopback returns whether only this host can reach a listener at the address. Names are not
 * resolved; the only name that counts is "localhost". */
bool kvp_hostport_is_loopback(const kvp_hostport_t *at);

/* kvp_listen_fix returns advice for a bind that failed with errno `no`: " (...)", or "". Static storage. */
const char *kvp_listen_fix(int no);

/* kvp_is_listed returns whether name is an entry of the comma-separated list. */
bool kvp_is_listed(const char *list, const char *name);

/* kvp_is_zmq_endpoint returns whether text is tcp://HOST:PORT, with a port of 0 to 65535 or "*", or ipc://NAME.
 * The check is needed because ZMQ itself accepts larger ports and takes them modulo 65536. */
bool kvp_is_zmq_endpoint(const char *text);

#endif
