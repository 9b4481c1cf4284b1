/* SPDX-License-Identifier: Apache-2.0 */
#include "common/trust/tokens.h"

#include "common/clock.h"
#include "common/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FIELDS 5u
#define END_FORMAT "%Y-%m-%dT%H:%M:%SZ"

struct kvp_tokenfile {
    kvp_identity_t *rows; /* sorted by digest */
    size_t n, cap;
};

static KVP_PRINTF(2, 3) void write_why(char *why_out, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(why_out, KVP_TOKENS_WHY_MAX, fmt, args);
    va_end(args);
}

static int
compare_rows(const void *a, const void *b)
{
    return memcmp(((const kvp_identity_t *)a)->digest, ((const kvp_identity_t *)b)->digest, SHA256_DIGEST_LENGTH);
}

static int
compare_tenants(const void *a, const void *b)
{
    const kvp_identity_t *x = *(const kvp_identity_t *const *)a, *y = *(const kvp_identity_t *const *)b;
    const uint32_t i = kvp_tenant_id(x->name), j = kvp_tenant_id(y->name);

    return i < j ? -1 : i > j ? 1 : strcmp(x->name, y->name);
}

static bool
read_hex(const char *text, uint8_t out[SHA256_DIGEST_LENGTH])
{
    if (strlen(text) != 2 * SHA256_DIGEST_LENGTH) return false;
    for (size_t i = 0; i < 2 * SHA256_DIGEST_LENGTH; i++) {
        const char c = text[i];
        const int v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;

        if (v < 0) return false;
        out[i / 2] = (uint8_t)(i % 2 == 0 ? v << 4 : out[i / 2] | v);
    }
    return true;
}

static bool
read_end(const char *text, uint64_t *end_out)
{
    struct tm at = {.tm_year = 0};
    const char *rest;
    time_t t;

    *end_out = 0;
    if (strcmp(text, "never") == 0) return true;
    rest = strptime(text, END_FORMAT, &at);
    if (rest == NULL || *rest != '\0') return false;
    t = timegm(&at);
    *end_out = t > 0 ? (uint64_t)t : 1;
    return true;
}

/* Reads one line, which it cuts into fields. Returns the fault, or NULL. */
static const char *
read_row(char *line, kvp_identity_t *row)
{
    char *fields[FIELDS], *rest = NULL;
    const char *why;
    size_t n = 0;

    for (char *f = strtok_r(line, " \t\r", &rest); f != NULL; f = strtok_r(NULL, " \t\r", &rest)) {
        if (n == FIELDS) return "more than five fields";
        fields[n++] = f;
    }
    if (n < FIELDS) return "fewer than five fields: SHA256 ID ROLE NAME END";
    memset(row, 0, sizeof *row);
    row->proof = KVP_BY_TOKEN;
    if (!read_hex(fields[0], row->digest)) return "the first field is not a SHA-256 of 64 lower-case hex digits";
    why = kvp_identity_check_name(fields[1], strlen(fields[1]));
    if (why == NULL && strlen(fields[1]) > KVP_IDENTITY_ID_MAX) why = "the id is longer than 64 bytes";
    if (why != NULL) return why;
    if (kvp_authrole_parse(fields[2], &row->role) != KVP_OK)
        return "the role is not monitor, reader, writer, engine, admin, node, master or conductor";
    why = kvp_identity_set_name(row, fields[3], strlen(fields[3]));
    if (why != NULL) return why;
    if (!read_end(fields[4], &row->end_s)) return "the end is not a time such as 2027-01-31T12:00:00Z, or never";
    snprintf(row->id, sizeof row->id, "%s", fields[1]);
    return NULL;
}

static kvp_err_t
add_line(kvp_tokenfile_t *t, const char *from, size_t len, size_t number, char *why_out)
{
    char line[512];
    kvp_identity_t *rows;
    const char *why;

    while (len > 0 && strchr(" \t\r", *from) != NULL && *from != '\0')
        from++, len--;
    if (len == 0 || *from == '#') return KVP_OK;
    if (t->n == KVP_TOKENS_MAX) {
        write_why(why_out, "line %zu: more than %u tokens", number, KVP_TOKENS_MAX);
        return KVP_LIMIT;
    }
    why = len >= sizeof line ? "the line is longer than 511 bytes" : memchr(from, '\0', len) ? "a NUL byte" : NULL;
    rows = why != NULL ? t->rows : kvp_grow(t->rows, t->n, &t->cap, 16, sizeof *rows);
    if (rows == NULL && why == NULL) {
        write_why(why_out, "out of memory");
        return KVP_NOMEM;
    }
    t->rows = rows;
    if (why == NULL) {
        memcpy(line, from, len);
        line[len] = '\0';
        why = read_row(line, &t->rows[t->n]);
    }
    if (why != NULL) {
        write_why(why_out, "line %zu: %s", number, why);
        return KVP_INVALID;
    }
    t->n++;
    return KVP_OK;
}

/* Finds two lines of one token, and two tenants with the same hash. */
static kvp_err_t
check_rows(const kvp_tokenfile_t *t, char *why_out)
{
    const kvp_identity_t **tenants = calloc(t->n + 1, sizeof *tenants);
    kvp_err_t err = tenants == NULL ? KVP_NOMEM : KVP_OK;
    size_t n = 0;

    if (err != KVP_OK) write_why(why_out, "out of memory");
    for (size_t i = 0; i < t->n && err == KVP_OK; i++) {
        if (kvp_authrole_is_client(t->rows[i].role)) tenants[n++] = &t->rows[i];
        if (i == 0 || compare_rows(&t->rows[i - 1], &t->rows[i]) != 0) continue;
        write_why(why_out, "the ids %s and %s have the same token", t->rows[i - 1].id, t->rows[i].id);
        err = KVP_INVALID;
    }
    if (n > 1) qsort(tenants, n, sizeof *tenants, compare_tenants);
    for (size_t i = 1; i < n && err == KVP_OK; i++) {
        const char *a = tenants[i - 1]->name, *b = tenants[i]->name;

        if (kvp_tenant_id(a) != kvp_tenant_id(b) || strcmp(a, b) == 0) continue;
        write_why(why_out, "the tenants %s and %s have the same hash: rename one of them", a, b);
        err = KVP_INVALID;
    }
    free(tenants);
    return err;
}

kvp_err_t
kvp_tokenfile_parse(const char *text, size_t len, kvp_tokenfile_t **tokens_out, char *why_out)
{
    kvp_tokenfile_t *t = calloc(1, sizeof *t);
    kvp_err_t err = KVP_OK;
    size_t at = 0;

    if (t == NULL) {
        write_why(why_out, "out of memory");
        return KVP_NOMEM;
    }
    for (size_t number = 1; at < len && err == KVP_OK; number++) {
        const char *end = memchr(text + at, '\n', len - at);
        const size_t n = end == NULL ? len - at : (size_t)(end - text) - at;

        err = add_line(t, text + at, n, number, why_out);
        at += n + 1;
    }
    if (err == KVP_OK && t->n > 0) qsort(t->rows, t->n, sizeof *t->rows, compare_rows);
    if (err == KVP_OK) err = check_rows(t, why_out);
    if (err == KVP_OK)
        *tokens_out = t;
    else
        kvp_tokenfile_destroy(t);
    return err;
}

void
kvp_tokenfile_destroy(kvp_tokenfile_t *tokens)
{
    if (tokens == NULL) return;
    free(tokens->rows);
    free(tokens);
}

size_t
kvp_tokenfile_count(const kvp_tokenfile_t *tokens)
{
    return tokens->n;
}

static kvp_err_t
read_file(int fd, size_t bytes, kvp_tokenfile_t **tokens_out, char *why_out)
{
    char *text = malloc(bytes + 1);
    kvp_err_t err = KVP_NOMEM;
    size_t have = 0;
    ssize_t n = 1;

    write_why(why_out, "out of memory");
    while (text != NULL && have <= bytes && (n = read(fd, text + have, bytes + 1 - have)) > 0)
        have += (size_t)n;
    if (text != NULL && n < 0) {
        write_why(why_out, "cannot read: %s", strerror(errno));
        err = KVP_SYS;
    } else if (text != NULL) {
        err = kvp_tokenfile_parse(text, kvp_min_u64(have, bytes), tokens_out, why_out);
    }
    free(text);
    return err;
}

static kvp_tokenfile_stamp_t
stamp_of(const struct stat *st)
{
    return (kvp_tokenfile_stamp_t){.inode = st->st_ino,
                                   .bytes = (uint64_t)st->st_size,
                                   .changed_ns =
                                       (uint64_t)st->st_ctim.tv_sec * KVP_NS_PER_S + (uint64_t)st->st_ctim.tv_nsec};
}

/* Reads the open file. *is_torn_out: the file changed meanwhile. */
static kvp_err_t
read_whole(int fd, const struct stat *st, kvp_tokenfile_t **tokens_out, bool *is_torn_out, char *why_out)
{
    const kvp_tokenfile_stamp_t stamp = stamp_of(st);
    kvp_tokenfile_stamp_t after;
    struct stat now;
    kvp_err_t err;

    write_why(why_out, "not a file of at most %u bytes", KVP_TOKEN_FILE_MAX);
    if (!S_ISREG(st->st_mode) || st->st_size > (off_t)KVP_TOKEN_FILE_MAX) return KVP_INVALID;
    write_why(why_out, "other users may write it: chmod go-w");
    if ((st->st_mode & (S_IWGRP | S_IWOTH)) != 0) return KVP_INVALID;
    err = read_file(fd, (size_t)st->st_size, tokens_out, why_out);
    if (fstat(fd, &now) != 0) return err;
    after = stamp_of(&now);
    *is_torn_out = memcmp(&after, &stamp, sizeof stamp) != 0;
    return err;
}

kvp_err_t
kvp_tokenfile_load(const char *path, time_t now_s, kvp_tokenfile_stamp_t *stamp_io, kvp_tokenfile_t **tokens_out,
                   char *why_out)
{
    static const kvp_tokenfile_stamp_t none = {.inode = 0}, missing = {.inode = UINT64_MAX};
    const bool is_first = memcmp(stamp_io, &none, sizeof none) == 0;
    const bool was_missing = memcmp(stamp_io, &missing, sizeof missing) == 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    kvp_tokenfile_stamp_t stamp;
    kvp_err_t err = KVP_OK;
    bool is_torn = false;
    struct stat st;

    *tokens_out = NULL;
    if (fd < 0 || fstat(fd, &st) != 0) {
        write_why(why_out, "cannot open: %s", strerror(errno));
        if (fd >= 0) close(fd);
        *stamp_io = missing;
        return was_missing ? KVP_OK : KVP_SYS;
    }
    stamp = stamp_of(&st);
    const bool is_young = !is_first && now_s >= st.st_ctim.tv_sec && now_s - st.st_ctim.tv_sec <= 1;
    if (memcmp(&stamp, stamp_io, sizeof stamp) != 0 && !is_young) {
        err = read_whole(fd, &st, tokens_out, &is_torn, why_out);
        if (is_torn && !is_first) {
            kvp_tokenfile_destroy(*tokens_out);
            *tokens_out = NULL;
            err = KVP_OK;
        } else {
            *stamp_io = stamp; /* after a fault, too: the fault is reported once for each change of the file */
        }
    }
    close(fd);
    return err;
}

void
kvp_tokenfile_find(const kvp_tokenfile_t *tokens, const char *text, size_t len, uint64_t now_s, kvp_identity_t *who_out)
{
    kvp_identity_t asked = {.role = KVP_MAY_NOTHING};
    const kvp_identity_t *row = NULL;

    *who_out = (kvp_identity_t){.proof = KVP_BY_TOKEN};
    if (len != KVP_TOKEN_TEXT_LEN || tokens == NULL) {
        kvp_identity_refuse(who_out, KVP_DENIED, "%s",
                            len == 0         ? "no token"
                            : tokens == NULL ? "this pool has no tokens (--tokens)"
                                             : "not a token: one has 47 characters, kvp_ and 43 others");
        return;
    }
    (void)SHA256((const unsigned char *)text, len, asked.digest);
    /* The time of the search depends on the token's digest. The digest reveals nothing about the token. */
    if (tokens->n > 0) row = bsearch(&asked, tokens->rows, tokens->n, sizeof *tokens->rows, compare_rows);
    if (row == NULL || CRYPTO_memcmp(row->digest, asked.digest, sizeof asked.digest) != 0) {
        kvp_identity_refuse(who_out, KVP_DENIED, "the token is unknown, or was deleted");
        return;
    }
    *who_out = *row;
    if (row->end_s != 0 && row->end_s <= now_s)
        kvp_identity_refuse(who_out, KVP_EXPIRED, "the token %s has ended", row->id);
}

bool
kvp_tokenfile_has_id(const kvp_tokenfile_t *tokens, const char *id)
{
    for (size_t i = 0; tokens != NULL && i < tokens->n; i++)
        if (strcmp(tokens->rows[i].id, id) == 0) return true;
    return false;
}

bool
kvp_tokenfile_has(const kvp_tokenfile_t *tokens, const kvp_identity_t *who)
{
    const kvp_identity_t *row = tokens == NULL || tokens->n == 0
                                    ? NULL
                                    : bsearch(who, tokens->rows, tokens->n, sizeof *tokens->rows, compare_rows);

    return row != NULL && row->role == who->role && strcmp(row->name, who->name) == 0 &&
           strcmp(row->node, who->node) == 0;
}

kvp_err_t
kvp_token_create(const char *id, kvp_authrole_t role, const char *name, uint64_t end_s,
                 char token_out[KVP_TOKEN_TEXT_LEN + 1], char *line_out, size_t line_cap)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    uint8_t bytes[33] = {0}, digest[SHA256_DIGEST_LENGTH];
    char hex[2 * SHA256_DIGEST_LENGTH + 1], end[32] = "never";
    const time_t at = (time_t)end_s;
    kvp_identity_t who = {.role = role};
    struct tm tm;

    if (kvp_identity_check_name(id, strlen(id)) != NULL || strlen(id) > KVP_IDENTITY_ID_MAX) return KVP_INVALID;
    if (kvp_identity_set_name(&who, name, strlen(name)) != NULL || role == KVP_MAY_NOTHING) return KVP_INVALID;
    if (RAND_bytes(bytes, 32) != 1) return KVP_SYS;
    memcpy(token_out, "kvp_", 4);
    for (size_t i = 0; i < 43; i++) {
        const size_t bit = 6 * i;
        const uint32_t pair = (uint32_t)bytes[bit / 8] << 8 | bytes[bit / 8 + 1];

        token_out[4 + i] = letters[pair >> (10 - bit % 8) & 63];
    }
    token_out[KVP_TOKEN_TEXT_LEN] = '\0';
    OPENSSL_cleanse(bytes, sizeof bytes);
    (void)SHA256((const unsigned char *)token_out, KVP_TOKEN_TEXT_LEN, digest);
    for (size_t i = 0; i < sizeof digest; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    if (end_s != 0 && gmtime_r(&at, &tm) != NULL) (void)strftime(end, sizeof end, END_FORMAT, &tm);
    snprintf(line_out, line_cap, "%s %s %s %s %s\n", hex, id, kvp_authrole_name(role), name, end);
    return KVP_OK;
}
