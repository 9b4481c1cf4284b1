/* SPDX-License-Identifier: Apache-2.0
 * The metrics of one handle, and the HTTP port at which Prometheus reads them if $KVPOOL_METRICS asks for one. A
 * thread of its own serves the port. It works for few readers at a time, with bounded memory and time. */
#ifndef KVP_CLIENT_API_EXPORTER_H
#define KVP_CLIENT_API_EXPORTER_H

#include "client/api/pool.h"
#include "common/parse.h"

/* kvp_exporter_start serves the handle's metrics at the address, or at the next free one of the KVP_EXPORTER_PORTS
 * ports from there on: processes with one environment get a port each. An address that cannot be used is logged, and
 * the handle works without the port. The handle's session must have started. kvp_exporter_stop ends the thread; legal
 * without one, and also in kvpool_close after the calls have ended. */
#define KVP_EXPORTER_PORTS 64u
void kvp_exporter_start(kvpool_t *pool, const kvp_hostport_t *at);
void kvp_exporter_stop(kvpool_t *pool);

/* kvp_exporter_at returns the address of the port; "" = none. */
const char *kvp_exporter_at(const kvpool_t *pool);

/* kvp_exporter_judge reads the head of a request: a text with an empty line at its end, which it changes. It returns
 * NULL for GET or HEAD of /metrics, else the status of the answer; *why_out is then the answer's text. is_loopback: the
 * port is on a loopback address, so requests that web pages may cause are refused. */
const char *kvp_exporter_judge(char *request, bool is_loopback, bool *is_head_out, const char **why_out);

#endif
