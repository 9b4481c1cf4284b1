/* SPDX-License-Identifier: Apache-2.0
 * The log as bytes: records of each kind and a small log, as they are in the golden files. Fails if they are written
 * another way, or a master reads something else out of them. */
#include "proto/segfmt.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/tenant.h"
#include "master/core/api/master.h"
#include "master/core/recovery/state.h"
#include "tests/unit/golden.h"

#include <string.h>

#define SEED 0x0123456789abcdefull
#define CHUNK (1ull << 20)
#define TENANT 7u

typedef struct {
    kvp_jrec_kind_t kind;
    uint32_t i; /* what it is about: key, segment, term */
} entry_t;

static const kvp_wire_lineage_t lineage = {0x1817161514131211, 0x201f1e1d1c1b1a19, 0x24232221, 1};

static kvp_digest_t
digest(uint32_t i)
{
    char key[16];

    return kvp_key_digest(SEED, TENANT, key, (size_t)snprintf(key, sizeof key, "kv/llama/%u", i));
}

/* Keys 1 and 3 are of a group, as are 1 and 2; 1 has a lineage. */
static void
make_commit(kvp_jrec_any_t *rec, uint32_t i)
{
    uint64_t version = kvp_gen_make(1, i);
    kvp_chunk_geo_t geo;

    kvp_chunk_geo(CHUNK, &geo);
    rec->commit.digest = digest(i);
    rec->commit.version = version;
    rec->commit.sum = kvp_sum("kvpool", 6);
    rec->commit.len = 6;
    rec->commit.group = (kvp_wire_group_t){{0x0807060504030201, 0x100f0e0d0c0b0a09}, 2, i != 1};
    rec->commit.tenant = TENANT;
    rec->commit.key_len = 10;
    rec->commit.flags = (uint8_t)(KVP_PIN_HARD | (i == 1 ? KVP_JREC_LINEAGE : 0));
    rec->commit.places_n = 1;
    *kvp_jrec_places(rec) = (kvp_jrec_place_t){version, 4096 * i, 1, 0, i, kvp_key_cell_units(&geo, i)};
    if (i == 1) *kvp_jrec_lineage(rec) = lineage;
    snprintf((char *)kvp_jrec_key(rec), 11, "kv/llama/%u", i);
}

static void
make(kvp_jrec_any_t *rec, entry_t e)
{
    memset(rec, 0, sizeof *rec);
    if (e.kind == KVP_JREC_BASE || e.kind == KVP_JREC_TERM)
        rec->term = (kvp_jrec_term_t){{0}, KVP_JOURNAL_MAGIC, {0x10, 0x11}, SEED, e.i, e.kind == KVP_JREC_BASE};
    if (e.kind == KVP_JREC_COMMIT) make_commit(rec, e.i);
    if (e.kind == KVP_JREC_GONE)
        rec->gone = (kvp_jrec_gone_t){{0}, digest(e.i), kvp_gen_make(1, e.i), KVP_GONE_REMOVED, 0, 0, 0};
    if (e.kind == KVP_JREC_TENANT)
        rec->tenant = (kvp_jrec_tenant_t){{0}, kvp_tenant_id("team-a"), e.i, kvp_gen_make(1, e.i), "team-a"};
    if (e.kind == KVP_JREC_SEGMENT)
        rec->segment = (kvp_jrec_segment_t){{0}, 5, CHUNK, CHUNK, {0x40, (uint8_t)e.i}, e.i, 1, "node", "host"};
    if (e.kind == KVP_JREC_SEGMENT_OVER) rec->over.number = e.i;
}

/* Writes them one behind the other, as the file has them, and reads them back. */
static kvp_buf_t
check_file(const char *name, const entry_t *entries, size_t n)
{
    kvp_buf_t out = {0};
    kvp_jrec_any_t rec;
    uint64_t check = 0;
    size_t at = 0, used;

    for (size_t i = 0; i < n; i++) {
        make(&rec, entries[i]);
        check = kvp_jrec_seal(&rec, entries[i].kind, check);
        kvp_buf_append(&out, &rec, rec.head.bytes);
    }
    check_golden(name, out.data, out.len);
    for (check = 0; at < out.len; at += used, check = rec.head.check) {
        assert_int_equal(kvp_jrec_read(out.data + at, out.len - at, check, &rec, &used), KVP_OK);
        assert_true(used > 0);
        assert_memory_equal(&rec, out.data + at, used);
    }
    return out;
}

TEST(test_a_record_of_each_kind)
{
    entry_t all[KVP_JREC_SEGMENT_OVER];
    kvp_buf_t bytes;

    for (uint32_t i = 0; i < KVP_ARRAY_LEN(all); i++)
        all[i] = (entry_t){(kvp_jrec_kind_t)(i + 1), 1};
    bytes = check_file("records", all, KVP_ARRAY_LEN(all));
    kvp_buf_fini(&bytes);
}

TEST(test_a_small_log)
{
    static const entry_t all[] = {
        {KVP_JREC_BASE, 1},    {KVP_JREC_SEGMENT, 1},      {KVP_JREC_COMMIT, 2}, {KVP_JREC_WHOLE, 0},
        {KVP_JREC_COMMIT, 1},  {KVP_JREC_GONE, 2},         {KVP_JREC_TENANT, 3}, {KVP_JREC_TERM, 2},
        {KVP_JREC_SEGMENT, 2}, {KVP_JREC_SEGMENT_OVER, 2}, {KVP_JREC_COMMIT, 3},
    };
    kvp_master_conf_t conf = {
        .term = 1, .digest_seed = SEED, .pool_id = {0x10, 0x11}, .host_id = "h", .has_journal = true};
    kvp_buf_t bytes = check_file("log", all, KVP_ARRAY_LEN(all));
    kvp_wire_lineage_t told;
    kvp_master_t *m;
    uint64_t end;
    kvp_obj_t *o;

    assert_int_equal(kvp_master_create(&conf, 1, &m), KVP_OK);
    assert_int_equal(kvp_master_read_log(m, bytes.data, bytes.len), KVP_OK);
    assert_int_equal(kvp_master_open_log(m, KVP_OPEN_WHOLE, &end), KVP_OK);
    assert_true(end == bytes.len && m->base.is_relied_on && m->ctx.term == 3);
    assert_int_equal(m->ctx.st.objects, 2);
    assert_string_equal(kvp_tenant_find(&m->cat, kvp_tenant_id("team-a"))->name, "team-a");
    assert_int_equal(kvp_objindex_find(m->cat.index, digest(2)), KVP_OID_NONE);
    assert_int_not_equal(kvp_objindex_find(m->cat.index, digest(3)), KVP_OID_NONE);
    o = kvp_obj(m->cat.index, kvp_objindex_find(m->cat.index, digest(1)));
    assert_true(kvp_obj_has_key(m->cat.index, o, "kv/llama/1", 10) && o->pin == KVP_PIN_HARD);
    told = kvp_obj_lineage(m->cat.index, o);
    assert_memory_equal(&told, &lineage, sizeof told);
    kvp_master_destroy(m);
    kvp_buf_fini(&bytes);
}

TEST_MAIN()
