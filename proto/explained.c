/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/explained.h"

#include "common/hash.h"
#include "common/utf8.h"
#include "proto/cause.h"
#include "proto/segfmt.h"
#include "proto/wire.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SENTENCE_MAX 512u
#define SPAN_MAX 32u

const char *
kvp_segment_state_name(uint32_t state)
{
    switch (state) {
    case KVP_SEG_UP:
        return "up";
    case KVP_SEG_DRAINING:
        return "draining";
    case KVP_SEG_LOST:
        return "lost";
    case KVP_SEG_CONNECTING:
        return "connecting";
    default:
        return "unknown";
    }
}

typedef struct {
    kvp_jsonw_t *w;
    kvp_explained_transport_fn transport;
    void *arg;
} writer_t;

/* Writes a time span for people: "350 ms", "12 s", "3 min", "5 h", "2 d". */
static const char *
span_text(uint64_t ms, char text[SPAN_MAX])
{
    static const struct {
        uint64_t ms;
        const char *unit;
    } units[] = {{86400000u, "d"}, {3600000u, "h"}, {60000u, "min"}, {1000u, "s"}, {1u, "ms"}};
    size_t i = 0;

    while (i + 1 < KVP_ARRAY_LEN(units) && ms < 2 * units[i].ms)
        i++;
    snprintf(text, SPAN_MAX, "%llu %s", (unsigned long long)(ms / units[i].ms), units[i].unit);
    return text;
}

/* Returns a remedy for the cause; "" = no remedy is needed. */
static const char *
help_for(const Kvp__Pb__Explained *e)
{
    if (e->elsewhere > 0)
        return "a chunk of memory belongs to one tenant: use fewer tenants, nodes with smaller --chunk-bytes, or more "
               "--memory; `kvpool stat` shows how much is free, and for which tenants";
    switch (e->cause) {
    case KVP_CAUSE_EVICTED:
        return "give the nodes more --memory, or an --ssd; `kvpool curve` shows what more memory would bring";
    case KVP_CAUSE_EVICTED_UNWRITTEN:
        return "the SSD is slower than the puts: give the node more --memory, or a faster or a second --ssd";
    case KVP_CAUSE_EVICTED_UNUSED:
        return "--ssd-admission used keeps objects off the SSDs that no client asked for; `all` writes them too";
    case KVP_CAUSE_EVICTED_MEMORY_ONLY:
        return "objects in groups, with a pin or with several copies are not written to SSDs: give more --memory";
    case KVP_CAUSE_EVICTED_FOR_DRAIN:
        return "a drain moved a node's objects, and no other node had free memory: `kvpool node ls` shows what it "
               "cost; "
               "`kvpool node drain --no-evict` stops instead";
    case KVP_CAUSE_EVICTED_FROM_SSD:
        return "give the node a larger --ssd";
    case KVP_CAUSE_LOST_NODE:
        return "put it with several copies (replicas), or run kvpool-keeper, which keeps memory over restarts of a "
               "node";
    case KVP_CAUSE_LOST_SSD:
        return "see the node's log and its disks";
    case KVP_CAUSE_UNREADABLE:
        return "a client may have committed an object that it did not write: see the node's log";
    case KVP_CAUSE_NODE_AWAY:
        return "start the node again, with the same name and --ssd";
    case KVP_CAUSE_GROUP_INCOMPLETE:
        return "the members that are missing must be put, by the client that began them or by another";
    case KVP_CAUSE_GROUP_ENDED:
        return "the group's writer must put all its members";
    case KVP_CAUSE_GIVEN_UP:
        return "see the writer's log: it ended, was silent, or aborted the put";
    case KVP_CAUSE_REFUSED:
        return e->refused == KVP_NO_SPACE ? "give the nodes more --memory; hard pins cannot be evicted" : "";
    case KVP_CAUSE_NOT_KNOWN:
        return "check the key, the tenant (--tenant; an admin has --all-tenants), and that the writer uses this pool";
    default:
        return "";
    }
}

static void __attribute__((format(printf, 3, 4))) add_text(char *text, size_t cap, const char *fmt, ...)
{
    const size_t len = strlen(text);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text + len, cap - len, fmt, ap);
    va_end(ap);
}

static const char *
cause_text(uint32_t cause)
{
    static const char *const texts[KVP_CAUSES_N] = {
        [KVP_CAUSE_NOT_KNOWN] = "not known",
        [KVP_CAUSE_PRESENT] = "it is there and can be read",
        [KVP_CAUSE_BEING_PUT] = "a client is putting it, and has not committed it",
        [KVP_CAUSE_GROUP_INCOMPLETE] = "its group is incomplete",
        [KVP_CAUSE_NODE_AWAY] = "it is only on nodes that are not connected",
        [KVP_CAUSE_LOADING] = "it is being read from an SSD into memory",
        [KVP_CAUSE_REMOVED] = "a client removed it",
        [KVP_CAUSE_BUMPED] = "a client bumped the tenant, which invalidates all that was put before",
        [KVP_CAUSE_REPLACED] = "a newer put of the key replaced it, and did not stay",
        [KVP_CAUSE_EVICTED] = "evicted from memory; its node has no SSD",
        [KVP_CAUSE_EVICTED_UNWRITTEN] = "evicted from memory before its node's SSD had it",
        [KVP_CAUSE_EVICTED_UNUSED] =
            "evicted from memory, and not written to an SSD because no client had asked for it",
        [KVP_CAUSE_EVICTED_MEMORY_ONLY] = "evicted from memory; objects of its kind are not written to SSDs",
        [KVP_CAUSE_EVICTED_FROM_SSD] = "evicted from its node's SSD",
        [KVP_CAUSE_GROUP_ENDED] = "dropped with its group, which was not completed or was removed",
        [KVP_CAUSE_LOST_NODE] = "lost with its node's memory",
        [KVP_CAUSE_LOST_SSD] = "lost on its node's SSD",
        [KVP_CAUSE_UNREADABLE] = "dropped, because its node found that no reader would accept it",
        [KVP_CAUSE_GIVEN_UP] = "its writer gave the put up",
        [KVP_CAUSE_REFUSED] = "the master refused the put",
        [KVP_CAUSE_EVICTED_FOR_DRAIN] = "evicted, to make room for the objects of a node that was being drained",
    };

    return cause < KVP_CAUSES_N ? texts[cause] : "a cause that this version does not know";
}

/* Returns the length of the node's name within the name of a copy's segment: a tier is named NODE/ssd. */
static int
node_len(const Kvp__Pb__ObjectCopy *copy)
{
    const char *end = copy->is_tier ? strrchr(copy->node, '/') : NULL;

    return (int)(end != NULL ? (size_t)(end - copy->node) : strlen(copy->node));
}

/* Writes the cause as one sentence. */
static void
explain_cause(const Kvp__Pb__Explained *e, char text[SENTENCE_MAX])
{
    const bool is_departure = e->cause >= KVP_CAUSE_REMOVED && e->n_copies == 0;
    char span[SPAN_MAX];

    snprintf(text, SENTENCE_MAX, "%s", cause_text(e->cause));
    if (e->cause == KVP_CAUSE_REFUSED) add_text(text, SENTENCE_MAX, ": %s", kvp_err_text(e->refused));
    if (e->cause == KVP_CAUSE_GROUP_INCOMPLETE)
        add_text(text, SENTENCE_MAX, ": %u of %u members", e->group_committed, e->group_members);
    if (e->cause == KVP_CAUSE_NOT_KNOWN && e->ago_ms > 0)
        add_text(text, SENTENCE_MAX, "; the master remembers what left in the last %s", span_text(e->ago_ms, span));
    for (size_t i = 0; e->cause == KVP_CAUSE_NODE_AWAY && i < e->n_copies; i++)
        if (i == 0 || !e->copies[i]->is_tier)
            add_text(text, SENTENCE_MAX, "%s %.*s", i == 0 ? ":" : ",", node_len(e->copies[i]), e->copies[i]->node);
    for (size_t i = 0; e->cause == KVP_CAUSE_PRESENT && i < e->n_copies; i++)
        if (!e->copies[i]->is_tier && e->copies[i]->state == KVP_SEG_DRAINING)
            add_text(text, SENTENCE_MAX, "; it moves from node %s, which is being drained or unmounted",
                     e->copies[i]->node);
    if (!is_departure) return;
    add_text(text, SENTENCE_MAX, ", %s%s ago", e->is_before ? "more than " : "", span_text(e->ago_ms, span));
    if (e->node[0] != '\0') add_text(text, SENTENCE_MAX, ", on node %s", e->node);
    if (e->age_ms > 0) add_text(text, SENTENCE_MAX, ", about %s after its put", span_text(e->age_ms, span));
    if (kvp_cause_is_eviction(e->cause)) add_text(text, SENTENCE_MAX, e->was_read ? ", after reads" : ", never read");
    if (e->elsewhere > 0)
        add_text(text, SENTENCE_MAX, ", although at least %u/8 of the memory was free in chunks of other tenants",
                 e->elsewhere);
}

/* ---- drains */
const char *
kvp_drain_failure(const Kvp__Pb__DrainReply *msg)
{
    static const char *const errors[] = {"", "the object had left the node", "the node cannot be read",
                                         "no memory, or too slow", "the SSD cannot be read"};

    return errors[kvp_min_u64(msg->last_error, KVP_ARRAY_LEN(errors) - 1)];
}

const char *
kvp_drain_why(const Kvp__Pb__DrainReply *msg, char why[KVP_DRAIN_WHY_MAX])
{
    const unsigned long long missing_mib = (msg->no_room_bytes + (1u << 20) - 1) >> 20;

    why[0] = '\0';
    if (msg->state != KVP_DRAIN_RUNS) return why;
    if (msg->is_away)
        snprintf(why, KVP_DRAIN_WHY_MAX, "the node is not connected: start it again, or look why it hangs");
    else if (msg->no_room > 0 && msg->no_evict)
        snprintf(why, KVP_DRAIN_WHY_MAX, "other nodes lack %llu MiB of free memory: add a node, or drain with --evict",
                 missing_mib);
    else if (msg->no_room > 0)
        snprintf(
            why, KVP_DRAIN_WHY_MAX,
            "other nodes lack %llu MiB of free memory, and nothing can be evicted for it (it is pinned, or clients "
            "hold it): add a node, or remove pinned objects",
            missing_mib);
    else if (msg->no_node > 0)
        snprintf(why, KVP_DRAIN_WHY_MAX,
                 "no other node can take %llu objects: it has to be up, not draining, and its chunks (--chunk-bytes) "
                 "have to be as large as they are. Start such a node",
                 (unsigned long long)msg->no_node);
    else if (msg->held > 0)
        snprintf(why, KVP_DRAIN_WHY_MAX, "clients hold %llu objects%s%.*s: stop them, or drain with --grace 1s",
                 (unsigned long long)msg->held, msg->held_by[0] == '\0' ? "" : ", one of them ", KVP_DRAIN_HOLDER_MAX,
                 msg->held_by);
    else if (msg->unread > 0)
        snprintf(why, KVP_DRAIN_WHY_MAX,
                 "%llu objects are on an SSD that cannot be read: repair it, or drain with --keep-ssd",
                 (unsigned long long)msg->unread);
    else if (msg->unfinished > 0)
        snprintf(why, KVP_DRAIN_WHY_MAX, "the puts of %llu objects have not ended",
                 (unsigned long long)msg->unfinished);
    else if (msg->failed > 0)
        snprintf(why, KVP_DRAIN_WHY_MAX, "copies fail, the last one because: %s", kvp_drain_failure(msg));
    return why;
}

/* ---- JSON */
/* Writes a key as the member "key"; as "key_hex" if it is no text. */
static void
write_key(kvp_jsonw_t *w, bool is_alone, const void *key, size_t len)
{
    char text[KVP_KEY_MAX + 1];

    if (is_alone) kvp_jsonw_open(w, NULL, '{');
    if (kvp_is_utf8(key, len) && memchr(key, 0, len) == NULL) {
        memcpy(text, key, len);
        text[len] = '\0';
        kvp_jsonw_text(w, "key", text);
    } else {
        kvp_jsonw_hex(w, "key_hex", key, len);
    }
    if (is_alone) kvp_jsonw_close(w, '}');
}

static const char *
pin_name(uint32_t pin)
{
    return pin == KVP_PIN_HARD ? "hard" : pin == KVP_PIN_SOFT ? "soft" : "none";
}

static void
write_copies(const writer_t *x, const Kvp__Pb__Explained *e)
{
    kvp_jsonw_open(x->w, "copies", '[');
    for (size_t i = 0; i < e->n_copies; i++) {
        const Kvp__Pb__ObjectCopy *copy = e->copies[i];
        char node[KVP_NAME_MAX + 1];

        snprintf(node, sizeof node, "%.*s", node_len(copy), copy->node);
        kvp_jsonw_open(x->w, NULL, '{');
        kvp_jsonw_text(x->w, "node", node);
        kvp_jsonw_text(x->w, "tier", copy->is_tier ? "ssd" : "memory");
        kvp_jsonw_text(x->w, "state", kvp_segment_state_name(copy->state));
        if (!copy->is_tier && x->transport != NULL) kvp_jsonw_text(x->w, "transport", x->transport(x->arg, copy));
        kvp_jsonw_u64(x->w, "segment_id", copy->segment_id);
        kvp_jsonw_close(x->w, '}');
    }
    kvp_jsonw_close(x->w, ']');
}

static void
write_object(const writer_t *x, const Kvp__Pb__Explained *e)
{
    kvp_jsonw_u64(x->w, "size_bytes", e->len);
    kvp_jsonw_u64(x->w, "version", e->version);
    kvp_jsonw_u64(x->w, "used_ms", e->used_ms);
    kvp_jsonw_bool(x->w, "is_unread", e->is_unread);
    kvp_jsonw_text(x->w, "pin", pin_name(e->pin));
    kvp_jsonw_u64(x->w, "reservations", e->tickets);
    if (e->group_committed > 0) {
        kvp_jsonw_open(x->w, "group", '{');
        kvp_jsonw_u64(x->w, "members", e->group_members);
        kvp_jsonw_u64(x->w, "committed", e->group_committed);
        kvp_jsonw_open(x->w, "keys", '[');
        for (size_t i = 0; i < e->n_group_keys; i++)
            write_key(x->w, true, e->group_keys[i].data, e->group_keys[i].len);
        kvp_jsonw_close(x->w, ']');
        kvp_jsonw_close(x->w, '}');
    }
    if (e->has_lineage) {
        kvp_jsonw_open(x->w, "lineage", '{');
        kvp_jsonw_u64(x->w, "sequence", e->sequence);
        kvp_jsonw_u64(x->w, "parent", e->parent);
        kvp_jsonw_u64(x->w, "depth", e->depth);
        kvp_jsonw_close(x->w, '}');
    }
    write_copies(x, e);
}

static void
write_explained(const writer_t *x, const Kvp__Pb__Explained *e)
{
    char text[SENTENCE_MAX];

    explain_cause(e, text);
    kvp_jsonw_open(x->w, NULL, '{');
    kvp_jsonw_text(x->w, "tenant", e->tenant);
    kvp_jsonw_bool(x->w, "is_present", e->cause == KVP_CAUSE_PRESENT);
    kvp_jsonw_text(x->w, "cause", kvp_cause_name(e->cause));
    kvp_jsonw_text(x->w, "text", text);
    kvp_jsonw_text(x->w, "help", help_for(e));
    kvp_jsonw_u64(x->w, "ago_ms", e->ago_ms);
    kvp_jsonw_bool(x->w, "is_before", e->is_before);
    if (e->cause == KVP_CAUSE_REFUSED) kvp_jsonw_text(x->w, "error", kvp_err_name(e->refused));
    kvp_jsonw_text(x->w, "node", e->node);
    kvp_jsonw_bool(x->w, "was_read", e->was_read);
    kvp_jsonw_u64(x->w, "age_ms", e->age_ms);
    if (e->elsewhere > 0) kvp_jsonw_ratio(x->w, "free_elsewhere_ratio", e->elsewhere, 8);
    if (e->n_copies > 0) write_object(x, e);
    kvp_jsonw_close(x->w, '}');
}

void
kvp_explained_write(kvp_jsonw_t *w, const void *key, size_t key_len, const Kvp__Pb__ExplainReply *msg,
                    kvp_explained_transport_fn transport, void *arg)
{
    const writer_t x = {.w = w, .transport = transport, .arg = arg};

    kvp_jsonw_open(w, NULL, '{');
    write_key(w, false, key, key_len);
    kvp_jsonw_open(w, "found", '[');
    for (size_t i = 0; i < msg->n_found; i++)
        write_explained(&x, msg->found[i]);
    kvp_jsonw_close(w, ']');
    kvp_jsonw_close(w, '}');
}
