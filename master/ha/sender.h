/* SPDX-License-Identifier: Apache-2.0
 * Sends the log to the leader's standbys, new records from memory and older ones from the files, and knows how far
 * each standby has written the log. Used in the loop's thread. */
#ifndef KVP_MASTER_HA_SENDER_H
#define KVP_MASTER_HA_SENDER_H

#include "master/ha/insync.h"
#include "master/ha/reader.h"
#include "master/shell/log_writer.h"
#include "master/shell/server.h"

typedef struct {
    uint64_t conn; /* 0 = the entry is free */
    char id[KVP_ELECTION_ID_MAX + 1];
    uint64_t sent; /* position of the files up to which the log was sent to this standby */
    uint64_t heard_ns, said_ns;
    bool is_told_last;
} kvp_standby_t;

typedef struct {
    kvp_server_t *server; /* borrowed */
    kvp_log_writer_t *log; /* borrowed */
    kvp_reader_t *reader; /* borrowed */
    uv_loop_t *uv; /* borrowed */
    const char *self; /* this master's id; borrowed */
    const kvp_election_t *election; /* borrowed; knows the addresses of the standbys */
    kvp_standby_t standbys[KVP_STANDBYS_MAX];
    kvp_insync_t insync; /* the positions of the same standbys */
    uint32_t n; /* number of connected standbys */
} kvp_sender_t;

/* kvp_sender_follow handles a FOLLOW on a connection that does not belong to the core: the peer is answered, and
 * becomes a standby, or its connection is closed. terms are the terms of our log, by positions of the files. */
void kvp_sender_follow(kvp_sender_t *s, uint64_t conn, const kvp_frame_t *frame, const kvp_wire_term_t *terms,
                       uint32_t terms_n, const kvp_master_ident_t *ident, uint64_t now_ns);
void kvp_sender_on_frame(kvp_sender_t *s, uint64_t conn, const kvp_frame_t *frame, uint64_t now_ns);
void kvp_sender_on_gone(kvp_sender_t *s, uint64_t conn);
void kvp_sender_close(kvp_sender_t *s); /* closes the connections of all standbys */

/* longest delay of records for which no answer waits, so that several are sent together */
#define KVP_SENDER_DELAY_MS 2u

typedef enum { KVP_SEND_SOON, KVP_SEND_NOW, KVP_SEND_LAST } kvp_sender_pace_t;

/* kvp_sender_pump sends written records, as far as the connections accept them. SOON: records may be delayed by
 * KVP_SENDER_DELAY_MS, so that a stream of puts costs few messages; true = records were delayed, and the call must be
 * repeated by then. LAST: announces that no more records follow. */
bool kvp_sender_pump(kvp_sender_t *s, kvp_sender_pace_t pace, uint64_t now_ns);

/* kvp_sender_tick closes the connections of silent standbys. */
void kvp_sender_tick(kvp_sender_t *s, uint64_t now_ns);

#endif
