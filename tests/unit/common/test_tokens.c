/* SPDX-License-Identifier: Apache-2.0
 * Tokens, their file, and the URI of certificates: what is refused, and with which reason. */
#include "common/hash.h"
#include "common/trust/tokens.h"
#include "tests/cases.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEX "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

static void
expect_refused(const char *text, const char *why)
{
    char found[KVP_TOKENS_WHY_MAX] = "";
    kvp_tokenfile_t *t = NULL;

    assert_int_not_equal(kvp_tokenfile_parse(text, strlen(text), &t, found), KVP_OK);
    assert_null(t);
    if (strstr(found, why) == NULL) fail_msg("\"%s\" lacks \"%s\"", found, why);
}

TEST(test_a_made_token_is_found_with_its_role_and_name)
{
    char token[KVP_TOKEN_TEXT_LEN + 1], line[512], why[KVP_TOKENS_WHY_MAX];
    kvp_identity_t who;
    kvp_tokenfile_t *t;

    assert_int_equal(kvp_token_create("id-1", KVP_MAY_WRITE, "acme", 1000, token, line, sizeof line), KVP_OK);
    assert_int_equal(strlen(token), KVP_TOKEN_TEXT_LEN);
    assert_int_equal(kvp_tokenfile_parse(line, strlen(line), &t, why), KVP_OK);
    kvp_tokenfile_find(t, token, strlen(token), 999, &who);
    assert_int_equal(who.role, KVP_MAY_WRITE);
    assert_string_equal(who.name, "acme");
    assert_string_equal(who.id, "id-1");
    assert_true(kvp_tokenfile_has(t, &who));
    kvp_tokenfile_find(t, token, strlen(token), 1000, &who);
    assert_int_equal(who.role, KVP_MAY_NOTHING);
    assert_int_equal(who.err, KVP_EXPIRED);
    token[10] = token[10] == 'A' ? 'B' : 'A';
    kvp_tokenfile_find(t, token, strlen(token), 0, &who);
    assert_int_equal(who.err, KVP_DENIED);
    kvp_tokenfile_find(t, token, 0, 0, &who);
    assert_int_equal(who.err, KVP_DENIED);
    kvp_tokenfile_destroy(t);
}

TEST(test_lines_with_a_fault_are_named)
{
    expect_refused("# one\n\nabc id reader acme never\n", "line 3: the first field is not a SHA-256");
    expect_refused(HEX " id reader acme\n", "line 1: fewer than five fields");
    expect_refused(HEX " id reader acme never more\n", "more than five fields");
    expect_refused(HEX " id king acme never\n", "the role is not");
    expect_refused(HEX " id reader ac/me never\n", "a character other than");
    expect_refused(HEX " id engine acme never\n", "TENANT/NODE");
    expect_refused(HEX " id engine acme/h1/x never\n", "a character other than");
    expect_refused(HEX " id reader acme tomorrow\n", "the end is not a time");
    expect_refused(HEX " id reader acme 2027-01-31T12:00:00Zx\n", "the end is not a time");
    expect_refused(HEX " a reader acme never\n" HEX " b reader acme never\n", "have the same token");
}

typedef struct {
    uint32_t id, n;
} named_t;

static int
compare_ids(const void *a, const void *b)
{
    const named_t *x = a, *y = b;

    return x->id < y->id ? -1 : x->id > y->id;
}

TEST(test_two_tenants_with_one_hash_are_refused)
{
    enum { N = 400000 };
    named_t *names = calloc(N, sizeof *names);
    char name[32], text[512];
    uint32_t at = 0;

    assert_non_null(names);
    for (uint32_t i = 0; i < N; i++) {
        snprintf(name, sizeof name, "t%u", i);
        names[i] = (named_t){.id = kvp_tenant_id(name), .n = i};
    }
    qsort(names, N, sizeof *names, compare_ids);
    while (at + 1 < N && names[at].id != names[at + 1].id)
        at++;
    assert_true(at + 1 < N);
    snprintf(text, sizeof text, "%s a reader t%u never\n0%s b reader t%u never\n", HEX, names[at].n, &HEX[1],
             names[at + 1].n);
    expect_refused(text, "have the same hash");
    free(names);
}

static void
expect_uri(const char *uri, size_t len, const char *why)
{
    kvp_identity_t who = {.role = KVP_MAY_NOTHING};
    const char *found = "";

    assert_int_equal(kvp_identity_parse_uri(uri, len, &who, &found), why == NULL ? KVP_OK : KVP_INVALID);
    if (why != NULL && strstr(found, why) == NULL) fail_msg("\"%s\" lacks \"%s\"", found, why);
    if (why != NULL) assert_int_equal(who.role, KVP_MAY_NOTHING);
}

static void
write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
}

/* The seconds of the epoch at which the file changed, plus those of `later`. */
static time_t
at_change(const char *path, time_t later)
{
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    return st.st_ctim.tv_sec + later;
}

TEST(test_a_file_counts_when_it_has_not_changed_for_a_second)
{
    char path[] = "/tmp/kvp-tokens-XXXXXX", why[KVP_TOKENS_WHY_MAX];
    kvp_tokenfile_stamp_t stamp = {.inode = 0};
    kvp_tokenfile_t *t = NULL;
    const int fd = mkstemp(path);

    assert_true(fd >= 0);
    close(fd);
    write_file(path, HEX " a reader acme never\n");
    assert_int_equal(kvp_tokenfile_load(path, at_change(path, 0), &stamp, &t, why), KVP_OK);
    assert_true(t != NULL && kvp_tokenfile_has_id(t, "a") && !kvp_tokenfile_has_id(t, "b"));
    kvp_tokenfile_destroy(t);
    write_file(path, ""); /* an editor has begun to write it */
    assert_int_equal(kvp_tokenfile_load(path, at_change(path, 0), &stamp, &t, why), KVP_OK);
    assert_null(t);
    assert_int_equal(kvp_tokenfile_load(path, at_change(path, 1), &stamp, &t, why), KVP_OK);
    assert_null(t);
    write_file(path, HEX " b reader acme never\n");
    assert_int_equal(kvp_tokenfile_load(path, at_change(path, 2), &stamp, &t, why), KVP_OK);
    assert_true(t != NULL && kvp_tokenfile_has_id(t, "b"));
    kvp_tokenfile_destroy(t);
    assert_int_equal(kvp_tokenfile_load(path, at_change(path, 9), &stamp, &t, why), KVP_OK);
    assert_null(t);
    /* Others may write it: refused once, for the change. So is a missing file. */
    assert_int_equal(chmod(path, 0620), 0);
    assert_int_equal(kvp_tokenfile_load(path, at_change(path, 2), &stamp, &t, why), KVP_INVALID);
    assert_non_null(strstr(why, "chmod go-w"));
    assert_int_equal(kvp_tokenfile_load(path, at_change(path, 3), &stamp, &t, why), KVP_OK);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(kvp_tokenfile_load(path, 0, &stamp, &t, why), KVP_SYS);
    assert_int_equal(kvp_tokenfile_load(path, 0, &stamp, &t, why), KVP_OK);
    assert_null(t);
}

TEST(test_the_uri_of_a_certificate)
{
    char longest[400] = "kvpool://pool/node/";
    kvp_identity_t who;
    const char *why;

    assert_int_equal(kvp_identity_parse_uri("kvpool://pool/writer/acme", 25, &who, &why), KVP_OK);
    assert_int_equal(who.role, KVP_MAY_WRITE);
    assert_string_equal(who.cluster, "pool");
    assert_string_equal(who.name, "acme");
    assert_int_equal(kvp_identity_parse_uri("kvpool://p/reader/default", 25, &who, &why), KVP_OK);
    assert_string_equal(who.name, "");
    assert_int_equal(kvp_identity_parse_uri("kvpool://p/engine/default/h1", 28, &who, &why), KVP_OK);
    assert_string_equal(who.name, "");
    assert_string_equal(who.node, "h1");
    expect_uri("kvpool://p/engine/acme", 22, "TENANT/NODE");
    expect_uri("kvpool://p/engine/acme/", 23, "the name is empty");
    expect_uri("http://pool/writer/acme", 23, "begin with kvpool://");
    expect_uri("kvpool://pool", 13, "unknown role");
    expect_uri("kvpool://pool/king/acme", 23, "unknown role");
    expect_uri("kvpool:///reader/acme", 21, "the name is empty");
    expect_uri("kvpool://pool/reader/", 21, "the name is empty");
    expect_uri("kvpool://pool/reader/a/b", 24, "a character other than");
    expect_uri("kvpool://pool/reader/a\0b", 24, "a NUL byte");
    expect_uri("kvpool://pool/reader\0/a", 23, "unknown role");
    memset(longest + strlen(longest), 'n', 300);
    expect_uri(longest, strlen(longest), "longer than 128 bytes");
}

TEST(test_what_each_role_covers)
{
    static const struct {
        kvp_authrole_t has, most; /* `most` is the highest role of a client that is covered */
    } roles[] = {
        {KVP_MAY_NOTHING, KVP_MAY_NOTHING}, {KVP_MAY_MONITOR, KVP_MAY_MONITOR},  {KVP_MAY_READ, KVP_MAY_READ},
        {KVP_MAY_WRITE, KVP_MAY_WRITE},     {KVP_MAY_ADMIN, KVP_MAY_ADMIN},      {KVP_IS_NODE, KVP_MAY_READ},
        {KVP_IS_MASTER, KVP_MAY_NOTHING},   {KVP_IS_CONDUCTOR, KVP_MAY_NOTHING}, {KVP_IS_ENGINE, KVP_MAY_WRITE}};

    for (size_t i = 0; i < KVP_ARRAY_LEN(roles); i++)
        for (kvp_authrole_t needed = KVP_MAY_NOTHING; needed <= KVP_MAY_ADMIN; needed++)
            assert_int_equal(kvp_authrole_covers(roles[i].has, needed),
                             needed != KVP_MAY_NOTHING && needed <= roles[i].most);
}

TEST_MAIN()
