/* SPDX-License-Identifier: Apache-2.0
 * e2e_shell: one client process that does what it is told, a command a line, and answers each with a line of JSON. So
 * a test has a real process in its hands: to be killed, stopped, or stuck in the middle of a copy. Keys are words, or
 * hex:BYTES. `err` in an answer is the stable name of what the library returned.
 *
 * A stuck call copies from or into memory whose page AT is not there: the handler says {"stuck":true} and waits for
 * SIGUSR1, then the page is given and the call goes on. */
#include "tests/e2e/e2e_util.h"
#include "tests/e2e/e2e_words.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096u
#define POISON 0xa5

typedef struct {
    uint8_t bytes[KVPOOL_KEY_MAX + 64];
    size_t len;
} name_t;

static kvpool_t *pool;
static kvpool_lookup_t lookup;
static kvpool_view_t view;
static uint8_t *kept; /* the buffer of the last get: must not be touched any more */
static size_t kept_len;
static uint8_t *volatile missing_page;

/* ---- words of the command */
static void
read_name(const char *text, name_t *name)
{
    name->len = 0;
    if (strncmp(text, "hex:", 4) != 0) {
        name->len = strnlen(text, sizeof name->bytes);
        memcpy(name->bytes, text, name->len);
        return;
    }
    for (text += 4; text[0] != '\0' && text[1] != '\0' && name->len < sizeof name->bytes; text += 2) {
        unsigned byte = 0;

        if (sscanf(text, "%2x", &byte) != 1) e2e_die("not hexadecimal: %s", text);
        name->bytes[name->len++] = (uint8_t)byte;
    }
}

/* name=1 for each flag */
static uint32_t
call_flags(void)
{
    static const struct {
        const char *name;
        uint32_t flag;
    } flags[] = {
        {"force", KVPOOL_FORCE},  {"upsert", KVPOOL_UPSERT}, {"wait", KVPOOL_WAIT},     {"fresh", KVPOOL_FRESH},
        {"pin", KVPOOL_PIN_HARD}, {"soft", KVPOOL_PIN_SOFT}, {"groups", KVPOOL_GROUPS}, {"keep", KVPOOL_KEEP_HERE},
    };
    uint32_t all = 0;

    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (e2e_named_number(flags[i].name, 0) != 0) all |= flags[i].flag;
    return all;
}

static kvpool_opts_t
call_opts(void)
{
    return (kvpool_opts_t){
        .struct_size = sizeof(kvpool_opts_t),
        .deadline_ms = (uint32_t)e2e_named_number("deadline", 0),
        .flags = call_flags(),
        .replicas = (uint32_t)e2e_named_number("replicas", 0),
        .segment = (uint32_t)e2e_named_number("segment", 0),
    };
}

/* ---- answers */
static void
begin(int err, uint64_t begun_ns)
{
    printf("{\"err\":\"%s\",\"ms\":%.2f", kvpool_errname(err), (double)(int64_t)(e2e_runnable_ns() - begun_ns) / 1e6);
}

static void
add(const char *name, uint64_t value)
{
    printf(",\"%s\":%llu", name, (unsigned long long)value);
}

static void
end(void)
{
    printf("}\n");
    fflush(stdout);
}

/* ---- memory that is not there */
static void
on_fault(int sig, siginfo_t *info, void *context)
{
    static const char text[] = "{\"stuck\":true}\n";
    uint8_t *at = info->si_addr;
    sigset_t others;

    (void)context;
    if (missing_page == NULL || at < missing_page || at >= missing_page + PAGE) {
        signal(sig, SIG_DFL); /* a fault of our own: happens again, and kills */
        return;
    }
    if (write(STDOUT_FILENO, text, sizeof text - 1) < 0) _exit(3);
    sigfillset(&others);
    sigdelset(&others, SIGUSR1);
    sigsuspend(&others);
    mprotect(missing_page, PAGE, PROT_READ | PROT_WRITE);
    missing_page = NULL;
}

static void
on_usr1(int sig)
{
    (void)sig; /* ends sigsuspend */
}

static void
install_handlers(void)
{
    struct sigaction fault = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    struct sigaction usr1 = {.sa_handler = on_usr1};
    sigset_t blocked;

    sigaction(SIGSEGV, &fault, NULL);
    sigaction(SIGUSR1, &usr1, NULL);
    /* Only ever taken inside the fault handler, also when it comes before that. */
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
}

static void
take_page_away(uint8_t *buf, size_t at)
{
    missing_page = buf + at / PAGE * PAGE;
    mprotect(missing_page, PAGE, PROT_NONE);
}

/* ---- commands: handle */
static void
do_open(void)
{
    kvpool_conf_t conf = {.struct_size = sizeof conf};
    uint64_t begun = e2e_runnable_ns();
    char detail[400] = "";
    int err;

    if (e2e_named_number("detail", 0) != 0) {
        conf.detail = detail;
        conf.detail_cap = sizeof detail;
    }
    conf.master = e2e_named("master");
    conf.name = e2e_named("name");
    conf.host_id = e2e_named("host_id");
    conf.transports = e2e_named("transports");
    conf.listen = e2e_named("listen");
    conf.deadline_ms = (uint32_t)e2e_named_number("deadline", 0);
    conf.drain_ms = (uint32_t)e2e_named_number("drain_ms", 0);
    conf.memory_bytes = e2e_named_number("memory_bytes", 0);
    conf.chunk_bytes = e2e_named_number("chunk_bytes", 0);
    conf.verify = (uint32_t)e2e_named_number("verify", 0);
    conf.tenant = e2e_named("tenant");
    err = kvpool_open(&conf, &pool);
    begin(err, begun);
    printf(",\"detail\":\"%s\"", detail);
    end();
}

static void
do_close(void)
{
    uint64_t begun = e2e_runnable_ns();
    int err = kvpool_close(pool);

    begin(err, begun);
    end();
}

static void
do_free(void)
{
    uint64_t begun = e2e_runnable_ns();

    kvpool_free(pool);
    pool = NULL;
    begin(KVPOOL_OK, begun);
    end();
}

/* ---- commands: one object */
static void
put_from(const name_t *name, uint8_t *buf, size_t len, size_t missing_at)
{
    kvpool_opts_t o = call_opts();
    uint64_t begun;
    int err;

    e2e_fill(buf, len, e2e_hash(name->bytes, name->len), e2e_named_number("version", 0));
    if (missing_at < len) take_page_away(buf, missing_at);
    begun = e2e_runnable_ns();
    if (e2e_named_number("upsert", 0) != 0)
        err = kvpool_upsert(pool, name->bytes, name->len, buf, len, &o);
    else
        err = kvpool_put(pool, name->bytes, name->len, buf, len, &o);
    begin(err, begun);
    end();
}

/* put KEY LEN [version=N] [upsert=1] [deadline=MS] [stuck_at=BYTE] */
static void
do_put(void)
{
    const size_t len = e2e_number(2);
    uint8_t *buf = e2e_alloc(len + PAGE);
    name_t name;

    read_name(e2e_word(1), &name);
    put_from(&name, buf, len, e2e_named_number("stuck_at", UINT64_MAX));
    munmap(buf, len + PAGE);
}

/* get KEY CAP [deadline=MS] [stuck_at=BYTE]: the buffer is poisoned as soon as the call has returned, and kept. */
static void
do_get(void)
{
    const size_t cap = e2e_number(2), missing_at = e2e_named_number("stuck_at", UINT64_MAX);
    kvpool_opts_t o = call_opts();
    uint64_t version = 0, begun;
    size_t len = 0, at = 0;
    bool is_intact = false;
    name_t name;
    int err;

    if (kept != NULL) munmap(kept, kept_len);
    kept_len = cap + PAGE;
    kept = e2e_alloc(kept_len);
    read_name(e2e_word(1), &name);
    if (missing_at < cap) take_page_away(kept, missing_at);
    begun = e2e_runnable_ns();
    err = kvpool_get(pool, name.bytes, name.len, kept, cap, &len, &o);
    begin(err, begun);
    if (err == KVPOOL_OK) is_intact = e2e_check(kept, len, e2e_hash(name.bytes, name.len), &version, &at);
    memset(kept, POISON, kept_len);
    add("len", len);
    add("version", version);
    printf(",\"intact\":%s", is_intact ? "true" : "false");
    end();
}

/* untouched: whether the buffer of the last get still holds the poison. */
static void
do_untouched(void)
{
    size_t i = 0;

    while (i < kept_len && kept[i] == POISON)
        i++;
    begin(KVPOOL_OK, e2e_runnable_ns());
    printf(",\"untouched\":%s", i == kept_len ? "true" : "false");
    end();
}

static void
do_exists(void)
{
    kvpool_opts_t o = call_opts();
    uint64_t begun = e2e_runnable_ns();
    int is_there = -1, err;
    name_t name;

    read_name(e2e_word(1), &name);
    err = kvpool_exists(pool, name.bytes, name.len, &is_there, &o);
    begin(err, begun);
    printf(",\"exists\":%d", is_there);
    end();
}

/* size KEY: its length, and how many copies are in memory */
static void
do_size(void)
{
    kvpool_opts_t o = call_opts();
    uint64_t begun = e2e_runnable_ns();
    kvpool_place_t place = {0};
    size_t len = 0;
    name_t name;
    int err, located;

    read_name(e2e_word(1), &name);
    err = kvpool_size(pool, name.bytes, name.len, &len, &o);
    (void)kvpool_batch_locate(pool, &(kvpool_key_t){name.bytes, name.len}, 1, &o, &place, &located);
    begin(err, begun);
    add("len", len);
    add("copies", place.copies);
    end();
}

/* remove KEY [force=1] [segment=ID: its copy there alone] */
static void
do_remove(void)
{
    kvpool_opts_t o = call_opts();
    uint64_t begun = e2e_runnable_ns();
    name_t name;
    int err;

    read_name(e2e_word(1), &name);
    err = kvpool_remove(pool, name.bytes, name.len, &o);
    begin(err, begun);
    end();
}

/* view KEY: looks at the bytes where they lie, and keeps the view; look: looks again; unview: ends it. */
static void
answer_view(const name_t *name, int err, uint64_t begun)
{
    uint64_t version = 0;
    size_t at = 0;
    bool is_intact = false;

    begin(err, begun);
    if (view.data != NULL) is_intact = e2e_check(view.data, view.len, e2e_hash(name->bytes, name->len), &version, &at);
    add("len", view.len);
    add("version", version);
    printf(",\"intact\":%s", is_intact ? "true" : "false");
    end();
}

static void
do_view(void)
{
    kvpool_opts_t o = call_opts();
    uint64_t begun = e2e_runnable_ns();
    name_t name;
    int err;

    read_name(e2e_word(1), &name);
    err = kvpool_view(pool, name.bytes, name.len, &o, &view);
    answer_view(&name, err, begun);
}

static void
do_look(void)
{
    name_t name;

    read_name(e2e_word(1), &name);
    answer_view(&name, KVPOOL_OK, e2e_runnable_ns());
}

static void
do_unview(void)
{
    uint64_t begun = e2e_runnable_ns();
    int err = kvpool_view_release(pool, &view);

    begin(err, begun);
    end();
}

static void
do_bump(void)
{
    kvpool_opts_t o = call_opts();
    uint64_t begun = e2e_runnable_ns();
    uint32_t epoch = 0;
    int err = kvpool_bump(pool, &o, &epoch);

    begin(err, begun);
    add("epoch", epoch);
    end();
}

/* ---- commands: many objects, named PREFIX0, PREFIX1, ...; with among=N seed=S any of the N names from FROM on, at
 * random */
typedef struct {
    size_t n, len;
    char (*names)[64];
    kvpool_key_t *keys;
    kvpool_iov_t *iovs;
    kvpool_item_t *items;
    int *results;
    uint8_t *arena; /* n pieces of len, registered; NULL where no bytes are moved */
} batch_t;

static void
batch_init(batch_t *b, const char *prefix, size_t from, size_t n, size_t len)
{
    const uint64_t among = e2e_named_number("among", 0);
    uint64_t state = e2e_named_number("seed", 1);

    *b = (batch_t){.n = n, .len = len};
    b->names = e2e_alloc(n * sizeof *b->names);
    b->keys = e2e_alloc(n * sizeof *b->keys);
    b->iovs = e2e_alloc(n * sizeof *b->iovs);
    b->items = e2e_alloc(n * sizeof *b->items);
    b->results = e2e_alloc(n * sizeof *b->results);
    if (len > 0) {
        b->arena = e2e_alloc(n * len + PAGE);
        int err = kvpool_register(pool, b->arena, n * len);
        if (err != KVPOOL_OK) e2e_die("cannot register: %s", kvpool_errname(err));
    }
    for (size_t i = 0; i < n; i++) {
        size_t number = from + (among > 0 ? e2e_random(&state) % among : i);
        int name_len = snprintf(b->names[i], sizeof b->names[i], "%s%zu", prefix, number);

        b->keys[i] = (kvpool_key_t){b->names[i], (size_t)name_len};
        b->iovs[i] = (kvpool_iov_t){b->arena + i * len, len};
        b->items[i] = (kvpool_item_t){.key = b->keys[i], .iov = &b->iovs[i], .iov_n = 1};
    }
}

static void
batch_fini(batch_t *b)
{
    if (b->arena != NULL) {
        int err = kvpool_unregister(pool, b->arena);
        if (err != KVPOOL_OK && err != KVPOOL_CLOSED) e2e_die("cannot unregister: %s", kvpool_errname(err));
        munmap(b->arena, b->n * b->len + PAGE);
    }
    munmap(b->names, b->n * sizeof *b->names);
    munmap(b->keys, b->n * sizeof *b->keys);
    munmap(b->iovs, b->n * sizeof *b->iovs);
    munmap(b->items, b->n * sizeof *b->items);
    munmap(b->results, b->n * sizeof *b->results);
}

static uint64_t
hash_of(const batch_t *b, size_t i)
{
    return e2e_hash(b->keys[i].data, b->keys[i].len);
}

static void
answer_batch(const batch_t *b, int err, uint64_t begun, uint64_t wrong)
{
    e2e_counts_t counts = {0};

    begin(err, begun);
    for (size_t i = 0; i < b->n && err == KVPOOL_OK; i++)
        e2e_count(&counts, b->results[i]);
    printf(",\"results\":");
    e2e_json_counts(stdout, &counts);
    add("wrong", wrong);
    end();
}

/* Makes the objects members of one group, numbered as their keys are. The group is the caller's. */
static void
batch_join(batch_t *b, const char *id, uint32_t members, kvpool_group_t *groups)
{
    for (size_t i = 0; i < b->n; i++) {
        groups[i] = (kvpool_group_t){.id = {id, strlen(id)}, .members = members};
        if (members > 0) groups[i].member = (uint32_t)(e2e_number(2) + i);
        b->items[i].group = &groups[i];
    }
}

/* bput PREFIX FROM N LEN [version=V] [stuck_at=BYTE of the first object] [group=ID members=N] */
static void
do_bput(void)
{
    kvpool_group_t groups[4096];
    const size_t n = e2e_number(3), len = e2e_number(4), missing_at = e2e_named_number("stuck_at", UINT64_MAX);
    kvpool_opts_t o = call_opts();
    uint64_t begun;
    batch_t b;
    int err;

    batch_init(&b, e2e_word(1), e2e_number(2), n, len);
    for (size_t i = 0; i < n; i++)
        e2e_fill(b.iovs[i].addr, len, hash_of(&b, i), e2e_named_number("version", 0));
    if (missing_at < len) take_page_away(b.arena, missing_at);
    if (e2e_named("group") != NULL && n <= sizeof groups / sizeof groups[0])
        batch_join(&b, e2e_named("group"), (uint32_t)e2e_named_number("members", 0), groups);
    begun = e2e_runnable_ns();
    err = kvpool_batch_put(pool, b.items, n, &o, b.results);
    answer_batch(&b, err, begun, 0);
    batch_fini(&b);
}

/* bget PREFIX FROM N LEN [stuck_at=BYTE of the first object] */
static void
do_bget(void)
{
    const size_t n = e2e_number(3), len = e2e_number(4), missing_at = e2e_named_number("stuck_at", UINT64_MAX);
    kvpool_opts_t o = call_opts();
    uint64_t begun, version, wrong = 0;
    size_t at;
    batch_t b;
    int err;

    batch_init(&b, e2e_word(1), e2e_number(2), n, len);
    if (missing_at < len) take_page_away(b.arena, missing_at);
    begun = e2e_runnable_ns();
    err = kvpool_batch_get(pool, b.items, n, &o, b.results);
    for (size_t i = 0; i < n && err == KVPOOL_OK; i++)
        if (b.results[i] == KVPOOL_OK)
            wrong += !e2e_check(b.iovs[i].addr, b.items[i].len, hash_of(&b, i), &version, &at);
    answer_batch(&b, err, begun, wrong);
    batch_fini(&b);
}

/* bexist PREFIX FROM N */
static void
do_bexist(void)
{
    kvpool_opts_t o = call_opts();
    uint64_t begun = e2e_runnable_ns(), there = 0, failed = 0;
    batch_t b;
    int err;

    batch_init(&b, e2e_word(1), e2e_number(2), e2e_number(3), 0);
    err = kvpool_batch_is_exist(pool, b.keys, b.n, &o, b.results);
    for (size_t i = 0; i < b.n && err == KVPOOL_OK; i++) {
        there += b.results[i] == 1;
        failed += b.results[i] < 0;
    }
    begin(err, begun);
    add("exist", there);
    add("failed", failed);
    end();
    batch_fini(&b);
}

/* bremove PREFIX FROM N */
static void
do_bremove(void)
{
    kvpool_opts_t o = call_opts();
    uint64_t begun = e2e_runnable_ns(), removed = 0, absent = 0, held = 0;
    batch_t b;
    int err;

    batch_init(&b, e2e_word(1), e2e_number(2), e2e_number(3), 0);
    err = kvpool_batch_remove(pool, b.keys, b.n, &o, b.results);
    for (size_t i = 0; i < b.n && err == KVPOOL_OK; i++) {
        removed += b.results[i] == KVPOOL_OK;
        absent += b.results[i] == KVPOOL_NOT_FOUND;
        held += b.results[i] == KVPOOL_HELD;
    }
    begin(err, begun);
    add("removed", removed);
    add("absent", absent);
    add("held", held);
    end();
    batch_fini(&b);
}

/* lookup PREFIX FROM N [ttl=MS], or prefix with the same words */
static void
do_lookup(void)
{
    const uint32_t ttl_ms = (uint32_t)e2e_named_number("ttl", 0);
    kvpool_opts_t o = call_opts();
    uint64_t begun = e2e_runnable_ns();
    batch_t b;
    int err;

    batch_init(&b, e2e_word(1), e2e_number(2), e2e_number(3), 0);
    if (strcmp(e2e_word(0), "prefix") == 0)
        err = kvpool_longest_prefix(pool, b.keys, b.n, ttl_ms, &o, NULL, &lookup);
    else
        err = kvpool_lookup(pool, b.keys, b.n, ttl_ms, &o, NULL, &lookup);
    begin(err, begun);
    add("found", lookup.found);
    add("granted", lookup.granted);
    add("ticket", lookup.ticket);
    add("ttl_ms", lookup.ttl_ms);
    end();
    batch_fini(&b);
}

static void
do_release(void)
{
    uint64_t begun = e2e_runnable_ns();
    int err = kvpool_lookup_release(pool, &lookup);

    begin(err, begun);
    end();
}

/* regex PATTERN [force=1], or all [force=1] */
static void
do_remove_many(void)
{
    kvpool_opts_t o = call_opts();
    uint64_t begun = e2e_runnable_ns(), removed = 0, held = 0;
    int err = strcmp(e2e_word(0), "all") == 0 ? kvpool_remove_all(pool, &o, &removed, &held)
                                              : kvpool_remove_by_regex(pool, e2e_word(1), &o, &removed, &held);

    begin(err, begun);
    add("removed", removed);
    add("held", held);
    end();
}

static int
write_key(void *arg, const void *key, size_t key_len, uint64_t len)
{
    fprintf(arg, "%.*s %llu\n", (int)key_len, (const char *)key, (unsigned long long)len);
    return 0;
}

/* list FILE LIMIT [prefix=P]: every page, a line "KEY LEN" an object. */
static void
do_list(void)
{
    kvpool_opts_t o = call_opts();
    const char *prefix = e2e_named("prefix") != NULL ? e2e_named("prefix") : "";
    uint64_t begun = e2e_runnable_ns(), cursor = 0, pages = 0;
    FILE *to = fopen(e2e_word(1), "w");
    int err;

    if (to == NULL) e2e_die("cannot write %s: %s", e2e_word(1), strerror(errno));
    do {
        err = kvpool_list(pool, prefix, strlen(prefix), (uint32_t)e2e_number(2), &cursor, write_key, to, &o);
        pages++;
    } while (err == KVPOOL_OK && cursor != 0);
    fclose(to);
    begin(err, begun);
    add("pages", pages);
    end();
}

static void
do_stat(void)
{
    static char text[1 << 20];
    uint64_t begun = e2e_runnable_ns();
    size_t len;
    int err = kvpool_stat(pool, text, sizeof text, &len, NULL);

    begin(err, begun);
    if (err == KVPOOL_OK) printf(",\"stat\":%s", text);
    end();
}

static const e2e_command_t commands[] = {
    {"open", do_open},       {"close", do_close},   {"free", do_free},           {"put", do_put},
    {"get", do_get},         {"size", do_size},     {"untouched", do_untouched}, {"exists", do_exists},
    {"remove", do_remove},   {"bput", do_bput},     {"bget", do_bget},           {"bexist", do_bexist},
    {"lookup", do_lookup},   {"prefix", do_lookup}, {"release", do_release},     {"regex", do_remove_many},
    {"all", do_remove_many}, {"list", do_list},     {"stat", do_stat},           {"view", do_view},
    {"look", do_look},       {"unview", do_unview}, {"bump", do_bump},           {"bremove", do_bremove},
};

int
main(void)
{
    install_handlers();
    e2e_obey(commands, sizeof commands / sizeof commands[0]);
    kvpool_free(pool);
    return 0;
}
