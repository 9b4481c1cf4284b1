/* SPDX-License-Identifier: Apache-2.0
 * The verbs where (the copies of a key's object) and why (the cause of its absence). Both ask one question. */
#include "tools/verbs/key.h"

#include "tools/base/json_out.h"
#include "tools/base/opts.h"
#include "tools/base/report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ANSWER_BYTES (1u << 20) /* an answer has the keys of at most 64 members of a group */
#define TEXT_BYTES (4u * 1024)
#define SPAN_BYTES 32u

/* Requests the answer for the key. After KVPOOL_OK the caller releases *answer_out with json_object_put. */
static int
ask_pool(kvpool_t *pool, const char *key, const kvpool_opts_t *opts, struct json_object **answer_out)
{
    char *text = kvp_cli_alloc(ANSWER_BYTES, 1);
    size_t len;
    int err = kvpool_explain(pool, key, strlen(key), text, ANSWER_BYTES, &len, opts);

    if (err == KVPOOL_OK) *answer_out = json_tokener_parse(text);
    if (err == KVPOOL_OK && *answer_out == NULL) err = KVPOOL_INTERNAL;
    free(text);
    return err;
}

/* Quotes and escapes a text of the answer, because names come from nodes and users. */
static const char *
quoted_text(struct json_object *from, const char *name, char text[TEXT_BYTES])
{
    const char *said = kvp_json_get_text(from, name);

    return kvp_cli_quote(said, strlen(said), text, TEXT_BYTES);
}

static const char *
seconds_text(uint64_t ms, char text[SPAN_BYTES])
{
    snprintf(text, SPAN_BYTES, "%" PRIu64 ".%" PRIu64 " s", ms / 1000, ms % 1000 / 100);
    return text;
}

/* ---- where */
static void
print_group(struct json_object *group)
{
    char text[TEXT_BYTES];
    struct json_object *keys;
    const size_t n = kvp_json_get_list(group, "keys", &keys);

    printf("group       %" PRIu64 " of %" PRIu64 " members are committed:", kvp_json_get_u64(group, "committed"),
           kvp_json_get_u64(group, "members"));
    for (size_t i = 0; i < n; i++) {
        struct json_object *key = json_object_array_get_idx(keys, i);
        const bool is_text = json_object_object_get_ex(key, "key", NULL);

        printf(" %s", quoted_text(key, is_text ? "key" : "key_hex", text));
    }
    putchar('\n');
}

static void
print_object(struct json_object *found)
{
    char text[TEXT_BYTES], span[SPAN_BYTES], bytes[KVP_BYTES_TEXT_MAX];
    struct json_object *copies, *group = kvp_json_get(found, "group"), *lineage = kvp_json_get(found, "lineage");
    const size_t n = kvp_json_get_list(found, "copies", &copies);
    const uint64_t age_ms = kvp_json_get_u64(found, "age_ms");

    printf("tenant      %s\n", quoted_text(found, "tenant", text));
    printf("state       %s\n", quoted_text(found, "text", text));
    printf("size        %s\n", kvp_format_bytes(kvp_json_get_u64(found, "size_bytes"), bytes));
    if (age_ms > 0)
        printf("put         about %s ago\n", seconds_text(age_ms, span));
    else
        printf("put         before this master listened\n");
    if (json_object_get_boolean(kvp_json_get(found, "was_read")))
        printf("last use    about %s ago\n", seconds_text(kvp_json_get_u64(found, "used_ms"), span));
    else
        printf("last use    %s\n",
               json_object_get_boolean(kvp_json_get(found, "is_unread")) ? "never read" : "not known");
    printf("pin         %s\n", quoted_text(found, "pin", text));
    printf("held by     %" PRIu64 " reads and reservations\n", kvp_json_get_u64(found, "reservations"));
    if (group != NULL) print_group(group);
    if (lineage != NULL)
        printf("lineage     sequence %" PRIu64 ", parent %" PRIu64 ", depth %" PRIu64 "\n",
               kvp_json_get_u64(lineage, "sequence"), kvp_json_get_u64(lineage, "parent"),
               kvp_json_get_u64(lineage, "depth"));
    for (size_t i = 0; i < n; i++) {
        struct json_object *copy = json_object_array_get_idx(copies, i);

        printf("copy        node %s, ", quoted_text(copy, "node", text));
        printf("%s, ", quoted_text(copy, "tier", text));
        printf("%s", quoted_text(copy, "state", text));
        if (json_object_object_get_ex(copy, "transport", NULL) && strcmp(kvp_json_get_text(copy, "state"), "lost") != 0)
            printf(", read from here by %s", quoted_text(copy, "transport", text));
        putchar('\n');
    }
}

/* ---- why */
static void
print_cause(struct json_object *found)
{
    char text[TEXT_BYTES];

    printf("tenant %s: ", quoted_text(found, "tenant", text));
    printf("%s (%s)\n", quoted_text(found, "text", text), kvp_json_get_text(found, "cause"));
    if (kvp_json_get_text(found, "help")[0] != '\0') printf("  help: %s\n", quoted_text(found, "help", text));
}

/* Prints the answer, and returns the exit code. The code of `where` depends on whether the object was found; `why`
 * always has an answer. */
static int
print_answer(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, struct json_object *answer, bool wants_cause)
{
    struct json_object *found;
    const size_t n = kvp_json_get_list(answer, "found", &found);
    int code = wants_cause ? KVP_EXIT_DONE : KVP_EXIT_REFUSED;

    for (size_t i = 0; i < n; i++) {
        struct json_object *one = json_object_array_get_idx(found, i);
        const bool is_there = json_object_object_get_ex(one, "copies", NULL);

        if (is_there) code = KVP_EXIT_DONE;
        if (common->is_json) continue;
        if (is_there && !wants_cause)
            print_object(one);
        else
            print_cause(one);
    }
    if (common->is_json)
        kvp_json_line(answer, stdout); /* kvp_json_line releases the JSON object */
    else
        json_object_put(answer);
    return kvp_cli_flush(verb, code);
}

static int
explain_key(const kvp_cli_verb_t *verb, int argc, char **argv, bool wants_cause)
{
    bool all_tenants = false;
    const kvp_cli_opt_t opts[] = {
        {"all-tenants", KVP_CLI_FLAG, &all_tenants, NULL, "search all tenants for the key", 0, 0}};
    kvp_cli_common_t common;
    kvpool_t *pool = NULL;
    struct json_object *answer = NULL;
    int first;
    int code = kvp_cli_parse(verb, opts, KVP_ARRAY_LEN(opts), argc, argv, &common, &first);

    if (code == KVP_EXIT_GO_ON) code = kvp_cli_one_key(verb, argc, first);
    if (code != KVP_EXIT_GO_ON) return code;
    code = kvp_cli_open(verb, &common, &pool);
    if (code != KVP_EXIT_DONE) return code;
    const kvpool_opts_t call = kvp_cli_call_opts(&common, all_tenants ? KVPOOL_ALL_TENANTS : 0);
    const int err = ask_pool(pool, argv[first], &call, &answer);
    kvpool_free(pool);
    if (err != KVPOOL_OK) return kvp_cli_fail_key(verb, &common, argv[first], strlen(argv[first]), err);
    return print_answer(verb, &common, answer, wants_cause);
}

int
kvp_cli_where(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    return explain_key(verb, argc, argv, false);
}

int
kvp_cli_why(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    return explain_key(verb, argc, argv, true);
}
