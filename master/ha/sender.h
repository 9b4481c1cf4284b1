/* SPDX-License-Identifier: Apache-2.0
 * The leader's standbys: it sends each the log, from memory where it was written just now and else
 * from its files, and knows how far each has written it. On the loop's thread. */
#ifndef KVP_MASTER_HA_SENDER_H
#define KVP_MASTER_HA_SENDER_H

#include "master/ha/insync.h"
#include "master/ha/reader.h"
#include "master/shell/log_writer.h"
#include "master/shell/server.h"

typedef struct {
    uint64_t conn; /* 0 = free */
    char id[KVP_ELECTION_ID_MAX + 1];
    uint64_t sent; /* position of the files */
    uint64_t heard_ns, said_ns;
    bool is_told_last;
} kvp_standby_t;

typedef struct {
    kvp_server_t *server; /* borrowed, */
    kvp_log_writer_t *log; /* and this, */
    kvp_reader_t *reader; /* and this, */
    uv_loop_t *uv; /* and this */
    const char *self; /* and our id */
    kvp_standby_t standbys[KVP_STANDBYS_MAX];
    kvp_insync_t insync; /* the positions of the same standbys */
    uint32_t n; /* connected */
} kvp_sender_t;

/* kvp_sender_follow takes a FOLLOW on a connection that is not the core's: it is answered, and
 * becomes a standby, or is closed. terms are those of our log, by positions of the files. */
void kvp_sender_follow(kvp_sender_t *s, uint64_t conn, const kvp_frame_t *frame, const kvp_wire_term_t *terms,
                       uint32_t terms_n, const kvp_master_ident_t *ident, uint64_t now_ns);
void kvp_sender_on_frame(kvp_sender_t *s, uint64_t conn, const kvp_frame_t *frame, uint64_t now_ns);
void kvp_sender_on_gone(kvp_sender_t *s, uint64_t conn);
void kvp_sender_close(kvp_sender_t *s); /* all of them */

#define KVP_SENDER_DELAY_MS 2u /* delay of records without waiting answers, which are sent together */

typedef enum { KVP_SEND_SOON, KVP_SEND_NOW, KVP_SEND_LAST } kvp_sender_pace_t;

/* kvp_sender_pump sends written records, as far as connections take them. SOON: may be delayed by
 * KVP_SENDER_DELAY_MS, so that a stream of puts costs few messages; true = records were delayed,
 * and the call must be repeated by then. LAST: announces that no more records follow. */
bool kvp_sender_pump(kvp_sender_t *s, kvp_sender_pace_t pace, uint64_t now_ns);

/* kvp_sender_tick gives up silent standbys. */
void kvp_sender_tick(kvp_sender_t *s, uint64_t now_ns);

#endif
