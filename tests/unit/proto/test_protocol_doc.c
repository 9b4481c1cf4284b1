/* SPDX-License-Identifier: Apache-2.0
 * docs/PROTOCOL.md held against the code, both ways: every number in its tables is the code's, and everything that
 * the code puts on the wire is in its tables. The golden files hold whole records byte for byte. */
#include "proto/segfmt.h"
#include "proto/frame.h"
#include "proto/jrec.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/wire.h"
#include "tests/unit/golden.h"
#include "tests/cases.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* No legal frame is longer than frames may be: the longest question, answer, and page of a report. */
_Static_assert(KVP_PLACES_MAX *(sizeof(kvp_wire_put_t) + sizeof(kvp_wire_group_t) + sizeof(kvp_wire_lineage_t) +
                                KVP_KEY_MAX) < KVP_FRAME_MAX - 65536,
               "");
_Static_assert(KVP_LIST_MAX * sizeof(kvp_wire_entry_t) + (256u << 10) + KVP_KEY_MAX < KVP_FRAME_MAX - 65536, "");
_Static_assert(256 * (sizeof(kvp_wire_extent_t) + KVP_DESC_BYTES + KVP_KEY_MAX) < KVP_FRAME_MAX - 65536, "");

/* ---- reading the page */
#define CELLS_MAX 8
#define DOC_MAX (1u << 20)

static char doc[DOC_MAX];

static void
read_text(const char *path, char *text, size_t cap)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) fail_msg("cannot open %s", path);
    size_t n = fread(text, 1, cap - 1, f);
    fclose(f);
    assert_true(n > 0 && n < cap - 1);
    text[n] = '\0';
}

/* A table row: its cells without the blanks around them. */
typedef struct {
    char text[1024];
    const char *cell[CELLS_MAX];
    size_t n;
} row_t;

static bool
split_row(const char *line, size_t len, row_t *row)
{
    assert_true(len < sizeof(row->text));
    memcpy(row->text, line, len);
    row->text[len] = '\0';
    row->n = 0;
    if (row->text[0] != '|') return false;
    for (char *at = row->text + 1; *at != '\0';) {
        char *bar = at;
        while (*bar != '\0' && (*bar != '|' || bar[-1] == '\\'))
            bar++;
        if (*bar == '\0') break;
        while (*at == ' ')
            at++;
        char *end = bar;
        while (end > at && end[-1] == ' ')
            end--;
        *end = '\0';
        assert_true(row->n < CELLS_MAX);
        row->cell[row->n++] = at;
        at = bar + 1;
    }
    return row->n > 0;
}

/* A walk over the rows of one table, from the line that holds `mark` on; the header and the rule under it are passed.
 */
typedef struct {
    const char *at;
    row_t row;
} table_t;

static const char *
next_line(const char *at)
{
    const char *end = strchr(at, '\n');
    return end == NULL ? at + strlen(at) : end + 1;
}

static bool
next_row(table_t *t)
{
    const char *line = t->at;
    t->at = next_line(line);
    return split_row(line, strcspn(line, "\n"), &t->row);
}

static table_t
open_table(const char *mark)
{
    table_t t = {0};
    const char *at = strstr(doc, mark);

    if (at == NULL) fail_msg("the page has no \"%s\"", mark);
    assert_null(strstr(at + 1, mark));
    while (*at != '\0' && *at != '|')
        at = next_line(at);
    t.at = at;
    assert_true(next_row(&t));
    assert_true(next_row(&t));
    assert_memory_equal(t.row.cell[0], "---", 3);
    return t;
}

static uint64_t
number(const char *cell, int base)
{
    char *end;
    uint64_t value = strtoull(cell, &end, base);
    if (*cell == '\0' || *end != '\0') fail_msg("\"%s\" is not a number", cell);
    return value;
}

/* unquote takes a cell's text out of its backquotes. */
static const char *
unquote(const char *cell, char out[512])
{
    size_t len = strlen(cell);
    assert_true(len >= 2 && len < 512 && cell[0] == '`' && cell[len - 1] == '`');
    memcpy(out, cell + 1, len - 2);
    out[len - 2] = '\0';
    return out;
}

/* ---- constants: rows that begin with the name of one, wherever they are */
static const struct {
    const char *name;
    uint64_t value;
} constants[] = {
#define CONSTANT(name)                                                                                                 \
    {                                                                                                                  \
#name, (uint64_t)(name)                                                                                        \
    }
    CONSTANT(KVP_BATCH_MAX),
    CONSTANT(KVP_PLACES_MAX),
    CONSTANT(KVP_LIST_MAX),
    CONSTANT(KVP_SEGMENTS_MAX),
    CONSTANT(KVP_NAME_MAX),
    CONSTANT(KVP_POOL_ID_SHOWN),
    CONSTANT(KVP_PATTERN_MAX),
    CONSTANT(KVP_KEY_MAX),
    CONSTANT(KVP_REPLICAS_MAX),
    CONSTANT(KVP_AVOID_MAX),
    CONSTANT(KVP_UNREADABLE_MAX),
    CONSTANT(KVP_TERM_MAX),
    CONSTANT(KVP_FRAME_HDR_BYTES),
    CONSTANT(KVP_FRAME_MAX),
    CONSTANT(KVP_FRAME_FIRST_MAX),
    CONSTANT(KVP_FRAME_REPLY),
    CONSTANT(KVP_FRAME_ONEWAY),
    CONSTANT(KVP_PB_BUDGET),
    CONSTANT(KVP_PROTO_VERSION),
    CONSTANT(KVP_PROTO_VERSION_MIN),
    CONSTANT(KVP_ROLE_CLIENT),
    CONSTANT(KVP_ROLE_NODE),
    CONSTANT(KVP_SEG_UP),
    CONSTANT(KVP_SEG_DRAINING),
    CONSTANT(KVP_SEG_LOST),
    CONSTANT(KVP_SEG_CONNECTING),
    CONSTANT(KVP_RETIRE_DEAD),
    CONSTANT(KVP_RETIRE_FREE),
    CONSTANT(KVP_DATA_MAGIC),
    CONSTANT(KVP_DATA_OPS_MAX),
    CONSTANT(KVP_DATA_READ),
    CONSTANT(KVP_DATA_WRITE),
    CONSTANT(KVP_DATA_PUBLISH),
    CONSTANT(KVP_DATA_AFTER_PRIOR),
    CONSTANT(KVP_DATA_GUARDED),
    CONSTANT(KVP_DATA_SUM),
    CONSTANT(KVP_SB_MAGIC),
    CONSTANT(KVP_SB_VERSION),
    CONSTANT(KVP_SB_BYTES),
    CONSTANT(KVP_DESC_BYTES),
    CONSTANT(KVP_DESC_LINE_BYTES),
    CONSTANT(KVP_KEY_CELL_BYTES),
    CONSTANT(KVP_DESC_FREE),
    CONSTANT(KVP_DESC_WRITING),
    CONSTANT(KVP_DESC_SEALED),
    CONSTANT(KVP_DESC_DEAD),
    CONSTANT(KVP_GEN_SEQ_BITS),
    CONSTANT(KVP_PIN_NONE),
    CONSTANT(KVP_PIN_SOFT),
    CONSTANT(KVP_PIN_HARD),
    CONSTANT(KVP_OWNER_ANY),
    CONSTANT(KVP_GROUP_MEMBERS_MAX),
    CONSTANT(KVP_REVOKED_MAX),
    CONSTANT(KVP_JREC_BASE),
    CONSTANT(KVP_JREC_WHOLE),
    CONSTANT(KVP_JREC_TERM),
    CONSTANT(KVP_JREC_COMMIT),
    CONSTANT(KVP_JREC_GONE),
    CONSTANT(KVP_JREC_TENANT),
    CONSTANT(KVP_JREC_SEGMENT),
    CONSTANT(KVP_JREC_TIER),
    CONSTANT(KVP_STAGE_OK),
    CONSTANT(KVP_STAGE_GONE),
    CONSTANT(KVP_STAGE_FAILED),
    CONSTANT(KVP_JREC_PIN),
    CONSTANT(KVP_JREC_LINEAGE),
    CONSTANT(KVP_JREC_LEAVING),
    CONSTANT(KVP_JREC_LEAVING_SHIFT),
    CONSTANT(KVP_JREC_SEGMENT_OVER),
    CONSTANT(KVP_GONE_REMOVED),
    CONSTANT(KVP_GONE_SUPERSEDED),
    CONSTANT(KVP_GONE_EVICTED),
    CONSTANT(KVP_GONE_LOST),
    CONSTANT(KVP_JREC_MAX),
    CONSTANT(KVP_JOURNAL_MAGIC),
    CONSTANT(KVP_DESC_PIN),
    CONSTANT(KVP_PRESENT_HOLD),
    CONSTANT(KVP_PRESENT_RESERVE),
    CONSTANT(KVP_PRESENT_GROUP),
    CONSTANT(KVP_PEER_BATCH_MAX),
    CONSTANT(KVP_PEER_NOTIFY_MAX),
    CONSTANT(KVP_PEER_NOTIFY_NAME_MAX),
    CONSTANT(KVP_PEER_CELLS),
    CONSTANT(KVP_PEER_KEY_MAX),
    CONSTANT(KVP_PEER_PULL),
    CONSTANT(KVP_PEER_SUM),
    CONSTANT(KVP_PEER_CHECK),
    CONSTANT(KVP_PEER_FETCH),
    CONSTANT(KVP_PEER_STORE),
    CONSTANT(KVP_JREC_OLDEST),
    CONSTANT(KVP_FOUND_PRESENT),
    CONSTANT(KVP_FOUND_ON_TIER),
    CONSTANT(KVP_FOUND_ON_HOST),
    CONSTANT(KVP_JREC_READ),
    CONSTANT(KVP_EXPLAINED_MAX),
    CONSTANT(KVP_EXPLAINED_KEYS_MAX),
    CONSTANT(KVP_CURVE_FIRST),
    CONSTANT(KVP_CURVE_OCTAVE),
    CONSTANT(KVP_CURVE_POINTS),
    CONSTANT(KVP_JREC_DRAIN),
    CONSTANT(KVP_JREC_DRAINING),
    CONSTANT(KVP_JREC_DRAIN_NO_EVICT),
    CONSTANT(KVP_JREC_DRAIN_UNTIL_MOUNT),
    CONSTANT(KVP_JREC_DRAIN_SSD),
    CONSTANT(KVP_TASK_WAITS),
    CONSTANT(KVP_TASK_RUNS),
    CONSTANT(KVP_TASK_FAILED),
    CONSTANT(KVP_TASK_DONE),
    CONSTANT(KVP_DRAIN_ASK),
    CONSTANT(KVP_DRAIN_BEGIN),
    CONSTANT(KVP_DRAIN_END),
    CONSTANT(KVP_DRAIN_NONE),
    CONSTANT(KVP_DRAIN_RUNS),
    CONSTANT(KVP_DRAIN_DONE),
    CONSTANT(KVP_DRAIN_UNREAD),
    CONSTANT(KVP_COPY_OK),
    CONSTANT(KVP_COPY_STALE),
    CONSTANT(KVP_COPY_AWAY),
    CONSTANT(KVP_COPY_FAILED),
#undef CONSTANT
};

TEST(test_constants)
{
    bool is_seen[KVP_ARRAY_LEN(constants)] = {0};
    row_t row;

    for (const char *line = doc; *line != '\0'; line = next_line(line)) {
        size_t i = 0;
        if (strncmp(line, "| KVP_", 6) != 0) continue;
        assert_true(split_row(line, strcspn(line, "\n"), &row) && row.n >= 2);
        while (i < KVP_ARRAY_LEN(constants) && strcmp(constants[i].name, row.cell[0]) != 0)
            i++;
        if (i == KVP_ARRAY_LEN(constants)) fail_msg("this test does not know %s", row.cell[0]);
        if (number(row.cell[1], 10) != constants[i].value) fail_msg("%s is not %s", row.cell[0], row.cell[1]);
        assert_false(is_seen[i]);
        is_seen[i] = true;
    }
    for (size_t i = 0; i < KVP_ARRAY_LEN(constants); i++) {
        if (!is_seen[i]) fail_msg("%s is not on the page", constants[i].name);
    }
    assert_int_equal(KVP_FRAME_FLAGS_KNOWN, KVP_FRAME_REPLY | KVP_FRAME_ONEWAY);
}

TEST(test_errors)
{
    static const struct {
        int number;
        const char *name;
        int dropin;
        const char *text;
    } errors[] = {
#define ERROR(num, name, dropin, text) {num, #name, dropin, text},
        KVPOOL_ERR_MAP(ERROR)
#undef ERROR
    };
    table_t t = open_table("\n## Errors\n");
    size_t n = 0;

    for (; next_row(&t); n++) {
        assert_true(n < KVP_ARRAY_LEN(errors) && t.row.n == 4);
        assert_int_equal(atoi(t.row.cell[0]), errors[n].number);
        assert_string_equal(t.row.cell[1], errors[n].name);
        assert_int_equal(atoi(t.row.cell[2]), errors[n].dropin);
        assert_string_equal(t.row.cell[3], errors[n].text);
    }
    assert_int_equal(n, KVP_ARRAY_LEN(errors));
}

/* ---- opcodes */

/* No default: the compiler says when one is missing here. */
static const char *
op_name(kvp_op_t op)
{
#define OP(name)                                                                                                       \
    case KVP_OP_##name:                                                                                                \
        return #name
    switch (op) {
        OP(HELLO);
        OP(BYE);
        OP(HEARTBEAT);
        OP(WATCH);
        OP(FOLLOW);
        OP(LOG);
        OP(FOLLOWED);
        OP(SWITCH);
        OP(PUT_BEGIN);
        OP(PUT_COMMIT);
        OP(PUT_ABORT);
        OP(GET);
        OP(EXISTS);
        OP(LOOKUP);
        OP(RELEASE);
        OP(REMOVE);
        OP(REMOVE_MANY);
        OP(LIST);
        OP(SEGMENTS);
        OP(STATUS);
        OP(USED);
        OP(BUMP);
        OP(PRESENT);
        OP(SNAPSHOT);
        OP(EXPLAIN);
        OP(TASK);
        OP(DRAIN);
        OP(SESSIONS);
        OP(MOUNT);
        OP(UNMOUNT);
        OP(FREED);
        OP(RETIRE);
        OP(FENCE);
        OP(REPORT);
        OP(CHECK);
        OP(OWNER);
        OP(DEMOTE);
        OP(STAGE);
        OP(DROP);
        OP(TIER_REPORT);
        OP(RECLAIM);
        OP(COPY);
        OP(OPEN_CHUNK);
        OP(DRAINED);
        OP(DATA_HELLO);
        OP(PEER_HELLO);
        OP(PEER_FIND);
        OP(PEER_MOVE);
        OP(PEER_NOTIFY);
        OP(PEER_CUT);
        OP(PEER_MAP);
        OP(PEER_RDMA);
        OP(PEER_STAGE);
    }
#undef OP
    return NULL;
}

static char proto[DOC_MAX]; /* proto/kvpool.proto, of which protoc makes the code */

/* find_message returns what stands in its braces, or NULL. */
static const char *
find_message(const char *name, size_t len)
{
    char mark[128];

    snprintf(mark, sizeof(mark), "\nmessage %.*s {", (int)len, name);
    const char *at = strstr(proto, mark);
    return at == NULL ? NULL : at + strlen(mark);
}

/* check_heads_named looks at "PutBegin → Places": every word with a capital is a message. */
static void
check_heads_named(const char *cell)
{
    for (const char *at = cell; *at != '\0';) {
        size_t len = strspn(at, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz");
        if (len > 0 && at[0] >= 'A' && at[0] <= 'Z' && find_message(at, len) == NULL)
            fail_msg("\"%s\" names no message", cell);
        at += len > 0 ? len : 1;
    }
}

TEST(test_opcodes)
{
    table_t t = open_table("\n## Messages\n");
    unsigned last = 0, on_page = 0, in_code = 0;

    for (; next_row(&t); on_page++) {
        unsigned op = (unsigned)number(t.row.cell[0], 10);
        assert_int_equal(t.row.n, 5);
        assert_true(op > last && op <= UINT8_MAX);
        last = op;
        const char *name = op_name((kvp_op_t)op);
        if (name == NULL) fail_msg("the code has no opcode %u", op);
        assert_string_equal(t.row.cell[1], name);
        check_heads_named(t.row.cell[3]);
    }
    for (unsigned op = 0; op <= UINT8_MAX; op++)
        in_code += op_name((kvp_op_t)op) != NULL;
    assert_int_equal(on_page, in_code);
}

/* ---- heads */
/* next_field passes comments and reserved numbers. False = the message ends. */
static bool
next_field(const char **at, char type[80], char name[64], uint64_t *id_out)
{
    for (;;) {
        char plain[64];

        *at += strspn(*at, " \n");
        if (**at == '}') return false;
        if (strncmp(*at, "//", 2) == 0) {
            *at = next_line(*at);
            continue;
        }
        bool is_repeated = sscanf(*at, "repeated %63s %63s = %" SCNu64, plain, name, id_out) == 3;
        bool is_field = is_repeated || sscanf(*at, "%63s %63s = %" SCNu64, plain, name, id_out) == 3;
        *at = strchr(*at, ';');
        assert_non_null(*at);
        ++*at;
        snprintf(type, 80, "%s%s", is_repeated ? "repeated " : "", plain);
        if (is_field) return true;
        assert_string_equal(type, "reserved");
    }
}

TEST(test_heads)
{
    table_t t = open_table("\n## Heads\n");
    const char *head = NULL; /* what is left of the message */
    char quoted[512], type[80], name[64];
    size_t on_page = 0, in_proto = 0;
    uint64_t id;

    while (next_row(&t)) {
        assert_int_equal(t.row.n, 5);
        if (t.row.cell[0][0] != '\0') {
            if (head != NULL) assert_false(next_field(&head, type, name, &id));
            unquote(t.row.cell[0], quoted);
            head = find_message(quoted, strlen(quoted));
            if (head == NULL) fail_msg("the code has no message %s", quoted);
            on_page++;
        }
        assert_non_null(head);
        if (t.row.cell[1][0] == '\0') continue; /* "no fields" */
        if (!next_field(&head, type, name, &id)) fail_msg("%s has no field %s", quoted, t.row.cell[3]);
        assert_int_equal(number(t.row.cell[1], 10), id);
        assert_string_equal(t.row.cell[2], type);
        assert_string_equal(t.row.cell[3], name);
    }
    assert_false(next_field(&head, type, name, &id));
    for (const char *at = proto; (at = strstr(at, "\nmessage ")) != NULL; at++)
        in_proto++;
    assert_int_equal(on_page, in_proto);
}

/* ---- records */
typedef struct {
    const char *record;
    size_t record_bytes;
    const char *field;
    size_t offset;
    size_t bytes;
} field_t;

/* RECORD(type, its fields in order): FIELD for each of them. */
#define FIELD(record, field)                                                                                           \
    {                                                                                                                  \
#record, sizeof(record), #field, offsetof(record, field), sizeof(((record *)0)->field)                         \
    }
#define RECORD(record, ...) EXPAND(EACH(record, __VA_ARGS__))
#define EXPAND(...) EXPAND1(EXPAND1(EXPAND1(EXPAND1(__VA_ARGS__))))
#define EXPAND1(...) EXPAND2(EXPAND2(EXPAND2(EXPAND2(__VA_ARGS__))))
#define EXPAND2(...) __VA_ARGS__
#define EACH(record, field, ...) FIELD(record, field) __VA_OPT__(, AGAIN PARENS(record, __VA_ARGS__))
#define AGAIN() EACH
#define PARENS ()

static const field_t fields[] = {
    RECORD(kvp_wire_put_t, digest, len, attempt, key_at, key_len),
    RECORD(kvp_wire_group_t, group, members, member),
    RECORD(kvp_wire_lineage_t, sequence, parent, depth, is_told),
    RECORD(kvp_wire_commit_t, attempt, sum, replicas, reserved),
    RECORD(kvp_wire_term_t, position, term, reserved),
    RECORD(kvp_wire_used_t, digest, reads, reserved),
    RECORD(kvp_wire_present_t, digest, version, set, ttl_ms, kind, reserved),
    RECORD(kvp_wire_presented_t, ticket, err, reserved),
    RECORD(kvp_wire_obj_t, err, nloc, version, len, sum),
    RECORD(kvp_wire_loc_t, segment_id, chunk, slot, key_off, generation, offset),
    RECORD(kvp_wire_entry_t, len, version, key_at, key_len),
    RECORD(kvp_wire_slot_t, chunk, slot, generation, owner),
    RECORD(kvp_wire_tiered_t, digest, version),
    RECORD(kvp_wire_demote_t, at, lineage),
    RECORD(kvp_wire_whole_t, digest, version, key_hash2, len, sum, lineage, tenant, flags, key_len),
    RECORD(kvp_wire_stage_t, digest, version, len, generation, offset, chunk, slot, key_off, reserved),
    RECORD(kvp_wire_copy_t, digest, version, len, sum, key_sum, generation, offset, segment_id, chunk, slot, key_off,
           to_generation, to_offset, to_chunk, to_slot, to_key_off, key_len, reserved),
    RECORD(kvp_wire_extent_t, chunk, slot, word),
    RECORD(kvp_wire_unreadable_t, digest, generation),
    RECORD(kvp_wire_check_t, chunk, slot, generation, version, digest, offset, len),
    RECORD(kvp_data_req_t, magic, n_ops, seq, bytes),
    RECORD(kvp_data_op_t, kind, flags, reserved0, reserved1, key, off, len, guard_key, guard_off, guard_word,
           reserved2),
    RECORD(kvp_data_rep_t, magic, n_ops, seq, bytes),
    RECORD(kvp_peer_at_t, addr, len, token),
    RECORD(kvp_peer_range_t, err, key_len, base, len, token, key),
    RECORD(kvp_peer_piece_t, token, addr, len, from),
    RECORD(kvp_peer_moved_t, err, reserved, sum),
    RECORD(kvp_superblock_t, magic, version, chunk, pool_id, segment_uuid, digest_seed, epoch, term, chunk_bytes,
           slots_max, reserved, keys_off, long_keys_off, meta_bytes, check),
    RECORD(kvp_chunk_owner_t, tenant, check),
    RECORD(kvp_desc_t, word, version, digest, key_hash2, offset, len, sum, ns_epoch, tenant, group, group_n,
           group_member, key_off, key_len, flags, attempt, term, reserved, check),
    RECORD(kvp_jrec_t, check, bytes, kind),
    RECORD(kvp_jrec_term_t, head, magic, pool_id, digest_seed, term, is_anew),
    RECORD(kvp_jrec_place_t, generation, offset, segment, chunk, slot, key_off),
    RECORD(kvp_jrec_commit_t, head, digest, version, sum, len, group, tenant, key_len, flags, places_n),
    RECORD(kvp_jrec_gone_t, head, digest, version, why, key_len, flags, cause),
    RECORD(kvp_jrec_segment_t, head, epoch, size_bytes, chunk_bytes, uuid, number, mounted_term, name, host_id),
    RECORD(kvp_jrec_over_t, head, number, reserved),
    RECORD(kvp_jrec_drain_t, head, number, flags, bytes_per_s),
    RECORD(kvp_jrec_tenant_t, head, tenant, epoch, min_version, name),
};

/* check_record holds the table of the record that begins at fields[i] against it, and returns where the next one is. */
static size_t
check_record(size_t i)
{
    const char *record = fields[i].record;
    size_t end = 0;
    char mark[128];

    snprintf(mark, sizeof(mark), "\n#### record `%s`, %zu bytes\n", record, fields[i].record_bytes);
    table_t t = open_table(mark);
    for (; i < KVP_ARRAY_LEN(fields) && strcmp(fields[i].record, record) == 0; i++) {
        assert_true(next_row(&t));
        assert_int_equal(number(t.row.cell[0], 10), fields[i].offset);
        assert_int_equal(number(t.row.cell[1], 10), fields[i].bytes);
        assert_string_equal(t.row.cell[2], fields[i].field);
        assert_int_equal(fields[i].offset, end); /* no padding, and no field left out of the list above */
        end += fields[i].bytes;
    }
    assert_false(next_row(&t));
    assert_int_equal(end, fields[i - 1].record_bytes);
    return i;
}

TEST(test_records)
{
    size_t in_code = 0, on_page = 0;

    for (size_t i = 0; i < KVP_ARRAY_LEN(fields); in_code++)
        i = check_record(i);
    for (const char *at = strstr(doc, "\n#### record "); at != NULL; at = strstr(at + 1, "\n#### record "))
        on_page++;
    assert_int_equal(on_page, in_code);
}

TEST(test_frame_header)
{
    table_t t = open_table("\n## Frames\n");
    kvp_buf_t out = {0};
    size_t at, end = 0;

    kvp_frame_begin(&out, 0x21, KVP_FRAME_ONEWAY, 0x3132333435363738, "head", 4, &at);
    kvp_buf_append(&out, "tailtailtail", 12);
    kvp_frame_end(&out, at);
    const struct {
        const char *name;
        uint64_t value;
    } header[] = {
        {"length", 20},
        {"opcode", 0x21},
        {"flags", KVP_FRAME_ONEWAY},
        {"head_len", 4},
        {"request_id", 0x3132333435363738},
    };
    for (size_t i = 0; i < KVP_ARRAY_LEN(header); i++) {
        uint64_t value = 0;
        assert_true(next_row(&t));
        size_t offset = number(t.row.cell[0], 10), bytes = number(t.row.cell[1], 10);
        assert_string_equal(t.row.cell[2], header[i].name);
        assert_int_equal(offset, end);
        memcpy(&value, out.data + offset, bytes);
        assert_int_equal(value, header[i].value);
        end = offset + bytes;
    }
    assert_int_equal(end, KVP_FRAME_HDR_BYTES);
    assert_memory_equal(out.data + 16, "head\0\0\0\0tailtailtail", 20);
    kvp_buf_fini(&out);
}

/* ---- rules with a table */
TEST(test_words)
{
    table_t t = open_table("A writer's store may change a word as this table says");
    static const char *const states[] = {"FREE", "WRITING", "SEALED", "DEAD"};
    static const uint64_t there[] = {4, 5, 6}; /* older than, same as, newer than 5 */

    for (unsigned now = 0; now < KVP_ARRAY_LEN(states); now++) {
        assert_true(next_row(&t) && t.row.n == 7);
        assert_string_equal(t.row.cell[0], states[now]);
        for (size_t i = 0; i < 6; i++) {
            kvp_desc_state_t next = i < 3 ? KVP_DESC_WRITING : KVP_DESC_SEALED;
            bool may = kvp_word_may_become(kvp_word_make(there[i % 3], (kvp_desc_state_t)now), kvp_word_make(5, next));
            assert_string_equal(t.row.cell[1 + i], may ? "yes" : "no");
        }
        /* What a writer may never store at all. */
        for (size_t i = 0; i < 3; i++) {
            uint64_t word = kvp_word_make(there[i], (kvp_desc_state_t)now);
            assert_false(kvp_word_may_become(word, kvp_word_make(5, KVP_DESC_FREE)));
            assert_false(kvp_word_may_become(word, kvp_word_make(5, KVP_DESC_DEAD)));
        }
    }
    assert_false(next_row(&t));
    assert_int_equal(kvp_word_make(kvp_gen_make(3, 9), KVP_DESC_SEALED), (3ull << 42 | 9) << 2 | 2);
}

TEST(test_geometry)
{
    table_t t = open_table("- `meta_bytes` = ");
    unsigned n = 0;

    for (; next_row(&t); n++) {
        kvp_chunk_geo_t geo;
        assert_int_equal(t.row.n, 5);
        kvp_chunk_geo(number(t.row.cell[0], 10), &geo);
        assert_int_equal(geo.slots_max, number(t.row.cell[1], 10));
        assert_int_equal(geo.keys_off, number(t.row.cell[2], 10));
        assert_int_equal(geo.long_keys_off, number(t.row.cell[3], 10));
        assert_int_equal(geo.meta_bytes, number(t.row.cell[4], 10));
    }
    assert_true(n > 0);
}

TEST(test_digests_and_sums)
{
    table_t t = open_table("\n## Digests and sums\n");
    char key[512];
    unsigned n = 0;

    for (; next_row(&t); n++) {
        assert_int_equal(t.row.n, 6);
        uint64_t seed = number(t.row.cell[0], 16);
        uint32_t tenant = (uint32_t)number(t.row.cell[1], 10);
        unquote(t.row.cell[2], key);
        kvp_digest_t digest = kvp_key_digest(seed, tenant, key, strlen(key));
        assert_int_equal(digest.lo, number(t.row.cell[3], 16));
        assert_int_equal(digest.hi, number(t.row.cell[4], 16));
        assert_int_equal(kvp_key_hash2(seed, tenant, key, strlen(key)), number(t.row.cell[5], 16));
    }
    assert_true(n > 0);
    t = open_table("\n| bytes | sum |\n");
    for (n = 0; next_row(&t); n++) {
        unquote(t.row.cell[0], key);
        assert_int_equal(kvp_sum(key, strlen(key)), number(t.row.cell[1], 16));
    }
    assert_true(n > 0);
}

/* ---- golden files */
static void
fill(void *at, size_t len, uint8_t first)
{
    for (size_t i = 0; i < len; i++)
        ((uint8_t *)at)[i] = (uint8_t)(first + i);
}

TEST(test_golden_frame)
{
    Kvp__Pb__Exists msg = KVP__PB__EXISTS__INIT;
    const kvp_digest_t digests[] = {{0x0807060504030201, 0x100f0e0d0c0b0a09}, {0x1817161514131211, 0x201f1e1d1c1b1a19}};
    kvp_buf_t out = {0};
    kvp_frame_t frame;
    size_t at, used;

    msg.n = 2;
    kvp_pb_frame_begin(&out, KVP_OP_EXISTS, 0, 0xa8a7a6a5a4a3a2a1, &msg, &at);
    kvp_buf_append(&out, digests, sizeof(digests));
    kvp_frame_end(&out, at);
    assert_int_equal(out.err, KVP_OK);
    check_golden("frame", out.data, out.len);
    assert_int_equal(kvp_frame_parse(out.data, out.len, &frame, &used), KVP_OK);
    assert_int_equal(used, out.len);
    assert_int_equal(frame.tail_len, sizeof(digests));
    kvp_buf_fini(&out);
}

TEST(test_golden_present)
{
    const kvp_wire_present_t records[] = {
        {{0x0807060504030201, 0x100f0e0d0c0b0a09}, (7ull << KVP_GEN_SEQ_BITS) | 42, 1, 0, KVP_PRESENT_HOLD, 0},
        {{0x1817161514131211, 0x201f1e1d1c1b1a19}, 0, 2, 4500, KVP_PRESENT_RESERVE, 0},
        {{0x2827262524232221, 0x302f2e2d2c2b2a29}, 0, 2, 4500, KVP_PRESENT_RESERVE, 0},
    };
    Kvp__Pb__Present msg = KVP__PB__PRESENT__INIT;
    kvp_buf_t out = {0};
    size_t at;

    msg.n = KVP_ARRAY_LEN(records);
    kvp_pb_frame_begin(&out, KVP_OP_PRESENT, 0, 0xa8a7a6a5a4a3a2a1, &msg, &at);
    kvp_buf_append(&out, records, sizeof(records));
    kvp_frame_end(&out, at);
    assert_int_equal(out.err, KVP_OK);
    check_golden("present", out.data, out.len);
    kvp_buf_fini(&out);
}

TEST(test_golden_superblock)
{
    kvp_superblock_t sb = {.magic = KVP_SB_MAGIC,
                           .version = KVP_SB_VERSION,
                           .chunk = 3,
                           .digest_seed = 0x0123456789abcdef,
                           .epoch = 0x1122334455667788,
                           .term = 7,
                           .chunk_bytes = 1u << 20,
                           .reserved = 0};
    kvp_superblock_t read;
    kvp_chunk_geo_t geo;

    fill(sb.pool_id, sizeof(sb.pool_id), 0x10);
    fill(sb.segment_uuid, sizeof(sb.segment_uuid), 0x40);
    kvp_chunk_geo(sb.chunk_bytes, &geo);
    sb.slots_max = geo.slots_max;
    sb.keys_off = geo.keys_off;
    sb.long_keys_off = geo.long_keys_off;
    sb.meta_bytes = geo.meta_bytes;
    kvp_sb_seal(&sb);
    check_golden("superblock", &sb, sizeof(sb));
    assert_int_equal(kvp_sb_verify(&sb, sizeof(sb), &read), KVP_OK);
    assert_memory_equal(&read.magic, "KVPOL001", 8);
}

TEST(test_golden_descriptor)
{
    static const char key[] = "kv/llama/0001";
    kvp_chunk_geo_t geo;
    kvp_desc_t read;
    kvp_desc_t desc = {.word = kvp_word_make(kvp_gen_make(7, 42), KVP_DESC_SEALED),
                       .version = 5,
                       .digest = kvp_key_digest(0x0123456789abcdef, 0, key, sizeof(key) - 1),
                       .key_hash2 = kvp_key_hash2(0x0123456789abcdef, 0, key, sizeof(key) - 1),
                       .offset = 4096,
                       .len = 6,
                       .sum = kvp_sum("kvpool", 6),
                       .ns_epoch = 1,
                       .group = {0x0807060504030201, 0x100f0e0d0c0b0a09},
                       .group_n = 4,
                       .group_member = 2,
                       .key_len = sizeof(key) - 1,
                       .flags = KVP_PIN_HARD,
                       .attempt = 99,
                       .term = 7};

    kvp_chunk_geo(1u << 20, &geo);
    desc.key_off = kvp_key_cell_units(&geo, 17);
    kvp_desc_seal(&desc);
    check_golden("descriptor", &desc, sizeof(desc));
    assert_int_equal(kvp_desc_verify(&desc, sizeof(desc), &geo, 1u << 20, &read), KVP_OK);
}

int
main(void)
{
    read_text(KVP_DOC_PATH, doc, sizeof(doc));
    read_text(KVP_PROTO_PATH, proto, sizeof(proto));
    return run_cases(NULL, NULL);
}
