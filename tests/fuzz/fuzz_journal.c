/* SPDX-License-Identifier: Apache-2.0
 * A journal that anybody may have written or torn. The first byte says how it is read: its bit 0, as it is; else as a
 * list of records whose checks are put right first, since no fuzzer finds a hash by itself. Whatever it is, what is
 * believed is whole records, the pieces in which it is read make no difference, and the master that opens it is sound.
 * So is a standby that has some of it and follows the rest: it writes that as it is, believes no more, and may lead. */
#include "common/buf.h"
#include "master/core/api/master.h"
#include "proto/jrec.h"
#include "tests/fuzz/fuzz_check.h"
#include "tests/world/check/core_check.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Bytes of the input, and 0 behind its end. */
static uint64_t
take(const uint8_t **data, size_t *size, size_t n)
{
    uint64_t value = 0;

    n = n < *size ? n : *size;
    memcpy(&value, *data, n);
    *data += n;
    *size -= n;
    return value;
}

/* A key of one byte, one or two places in few slots, and perhaps a lineage. */
static void
fill_key(kvp_jrec_any_t *rec, kvp_jrec_kind_t kind, const uint8_t **data, size_t *size)
{
    uint8_t key = (uint8_t)(take(data, size, 1) & 7);
    uint32_t tenant = key & 1;
    kvp_chunk_geo_t geo;

    rec->gone.digest = kvp_key_digest(0, tenant, &key, 1);
    rec->gone.version = take(data, size, 1) << 42 | take(data, size, 1);
    if (kind == KVP_JREC_GONE) return;
    kvp_chunk_geo(1 << 17, &geo);
    rec->commit.tenant = tenant;
    rec->commit.len = 1 + take(data, size, 2);
    rec->commit.key_len = 1;
    rec->commit.flags = (uint8_t)take(data, size, 1) & (KVP_JREC_PIN | KVP_JREC_LINEAGE | KVP_JREC_LEAVING);
    rec->commit.group.group.lo = take(data, size, 1) & 3;
    rec->commit.group.members = rec->commit.group.group.lo == 0 ? 0 : 2;
    rec->commit.group.member = rec->commit.group.group.lo == 0 ? 0 : key & 1;
    rec->commit.places_n = (uint8_t)(1 + (take(data, size, 1) & 1));
    for (uint32_t i = 0; i < rec->commit.places_n; i++) {
        kvp_jrec_place_t *p = &kvp_jrec_places(rec)[i];

        p->generation = rec->commit.version + i;
        p->segment = (uint32_t)take(data, size, 1) & 7;
        p->chunk = (uint32_t)take(data, size, 1) & 1;
        p->slot = (uint32_t)take(data, size, 1) & 15;
        p->offset = (take(data, size, 1) & 31) * 4096;
        p->key_off = kvp_key_cell_units(&geo, p->slot);
    }
    if (kvp_jrec_lineage(rec) != NULL) {
        kvp_jrec_lineage(rec)->sequence = take(data, size, 1);
        kvp_jrec_lineage(rec)->is_told = (uint32_t)(take(data, size, 1) & 3);
    }
    *kvp_jrec_key(rec) = key;
}

/* Few keys, terms and tenants, so that records meet. */
static void
fill(kvp_jrec_any_t *rec, kvp_jrec_kind_t kind, const uint8_t **data, size_t *size)
{
    memset(rec, 0, sizeof *rec);
    if (kind == KVP_JREC_BASE || kind == KVP_JREC_TERM) {
        rec->term.magic = KVP_JOURNAL_MAGIC;
        rec->term.term = (uint32_t)take(data, size, 1);
        rec->term.is_anew = (uint32_t)take(data, size, 1) & 1;
    } else if (kind == KVP_JREC_TENANT) {
        rec->tenant.name[0] = (char)('a' + (take(data, size, 1) & 7));
        rec->tenant.tenant = kvp_tenant_id(rec->tenant.name);
        rec->tenant.epoch = (uint32_t)take(data, size, 1);
        rec->tenant.min_version = take(data, size, 1) << 42 | take(data, size, 1);
    } else if (kind == KVP_JREC_SEGMENT) {
        rec->segment.number = (uint32_t)take(data, size, 1) & 7;
        rec->segment.size_bytes = (1 + (take(data, size, 1) & 15)) << 16;
        rec->segment.chunk_bytes = 1 << 17;
        rec->segment.uuid[0] = (uint8_t)rec->segment.number;
        rec->segment.name[0] = rec->segment.host_id[0] = 'a';
    } else if (kind == KVP_JREC_SEGMENT_OVER) {
        rec->over.number = (uint32_t)take(data, size, 1) & 7;
    } else {
        fill_key(rec, kind, data, size);
    }
}

static void
seal(const uint8_t *data, size_t size, kvp_buf_t *out)
{
    uint64_t before = 0;

    while (size > 0) {
        kvp_jrec_kind_t kind = (kvp_jrec_kind_t)(1 + take(&data, &size, 1) % KVP_JREC_SEGMENT_OVER);
        kvp_jrec_any_t rec;

        fill(&rec, kind, &data, &size);
        before = kvp_jrec_seal(&rec, kind, before);
        kvp_buf_append(out, &rec, rec.head.bytes);
    }
}

/* Where it is cut, read in pieces of that length; UINT64_MAX = it is not to be opened. */
static uint64_t
open_in(const kvp_buf_t *journal, size_t piece)
{
    kvp_master_conf_t conf = {.term = 1, .host_id = "fuzz", .has_journal = true};
    uint64_t end = UINT64_MAX;
    kvp_master_t *m;
    kvp_err_t err;

    check(kvp_master_create(&conf, 1, &m) == KVP_OK);
    for (size_t at = 0; at < journal->len; at += piece)
        kvp_ignore(kvp_master_read_log(m, journal->data + at, kvp_min_u64(piece, journal->len - at)),
                   "open says it too");
    err = kvp_master_open_log(m, KVP_OPEN_SHORT, &end);
    check(err == KVP_OK || end == UINT64_MAX);
    if (err == KVP_OK) {
        check(end <= journal->len && end % 8 == 0);
        kvp_master_on_tick(m, 60000000000u); /* all nodes have had their time */
        check(kvp_master_check(m) == NULL);
    }
    kvp_master_destroy(m);
    return end;
}

/* A standby whose own log is the first bytes; the rest comes in pieces of that length. */
static void
follow_in(const kvp_buf_t *journal, size_t own, size_t piece)
{
    kvp_master_conf_t conf = {.term = 1, .host_id = "fuzz", .has_journal = true, .is_elected = true};
    kvp_master_ready_t ready = {.conn = 0};
    kvp_master_done_t done = {.kind = KVP_DONE_WRITTEN};
    kvp_err_t err = KVP_OK;
    kvp_master_t *m;
    uint64_t end;

    check(kvp_master_create(&conf, 1, &m) == KVP_OK);
    kvp_ignore(kvp_master_read_log(m, journal->data, own), "open says it too");
    if (kvp_master_open_log(m, KVP_OPEN_FOLLOW, &end) == KVP_OK) {
        check(end <= own);
        for (size_t at = end; at < journal->len && err == KVP_OK; at += piece) {
            err = kvp_master_read_log(m, journal->data + at, kvp_min_u64(piece, journal->len - at));

            while (kvp_master_ready(m, &ready)) {
                if (ready.log.len == 0) continue;
                check(ready.log_end == end + ready.log.len && ready.log_end <= journal->len);
                check(memcmp(journal->data + end, ready.log.data, ready.log.len) == 0);
                end = ready.log_end;
                kvp_buf_reset(&ready.log);
            }
            done.position = end;
            kvp_master_done(m, &done, 1);
        }
        if (err == KVP_OK && kvp_master_lead(m, KVP_TERM_MAX - 1, (piece & 1) != 0, 2) == KVP_OK) {
            kvp_master_on_tick(m, 60000000000u);
            check(kvp_master_check(m) == NULL);
        }
    }
    kvp_buf_fini(&ready.log);
    kvp_master_destroy(m);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvp_buf_t journal;
    uint64_t end;

    if (size < 2 || size > 4096) return 0;
    kvp_buf_init(&journal, 0);
    if ((data[0] & 1) != 0)
        kvp_buf_append(&journal, data + 1, size - 1);
    else
        seal(data + 1, size - 1, &journal);
    end = open_in(&journal, journal.len);
    check(open_in(&journal, 1 + (data[0] >> 1)) == end);
    follow_in(&journal, journal.len * (data[0] >> 4) / 15, 1 + (data[0] >> 1));
    kvp_buf_fini(&journal);
    return 0;
}
