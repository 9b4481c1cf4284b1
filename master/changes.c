/* SPDX-License-Identifier: Apache-2.0 */
#include "master/changes.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SPELL_MS 60000u /* a spell of evictions or refusals is over after this time without one */

static KVP_PRINTF(3, 4) void add_change(kvp_changes_t *c, kvp_log_level_t level, const char *fmt, ...)
{
    kvp_change_t *change = &c->ring[c->next];
    uint32_t missed;
    va_list args;

    change->at_ms = c->now.at_ms;
    va_start(args, fmt);
    vsnprintf(change->text, sizeof change->text, fmt, args);
    va_end(args);
    c->next = (c->next + 1) % KVP_CHANGES_MAX;
    if (c->n < KVP_CHANGES_MAX) c->n++;
    if (!kvp_log_limit_ok(&c->limit, &missed)) return;
    if (missed == 0)
        kvp_log_write(level, "master", "%s", change->text);
    else
        kvp_log_write(level, "master", "%s missed=%u", change->text, missed);
}

const kvp_change_t *
kvp_changes_get(const kvp_changes_t *c, uint32_t i)
{
    return &c->ring[(c->next + KVP_CHANGES_MAX - 1 - i) % KVP_CHANGES_MAX];
}

/* Finds the node in the other state. Nodes keep their order, so the search begins after the node found last. */
static const kvp_master_node_t *
find_node(const kvp_look_t *look, const kvp_master_node_t *node, uint32_t *at)
{
    for (uint32_t k = 0; k < look->nodes_n; k++) {
        const uint32_t i = (*at + k) % look->nodes_n;
        const kvp_master_node_t *other = &look->nodes[i];

        if (other->is_tier != node->is_tier || strcmp(other->name, node->name) != 0) continue;
        *at = i + 1;
        return other;
    }
    return NULL;
}

static void
compare_node(kvp_changes_t *c, const kvp_master_node_t *was, const kvp_master_node_t *is)
{
    const kvp_master_node_t *node = is != NULL ? is : was;
    const char *kind = node->is_tier ? "the SSD of node" : "node", *name = node->name;

    if (is == NULL && was->state == KVP_SEG_LOST)
        add_change(c, KVP_LOG_DEBUG, "%s %s did not come back, and is given up", kind, name); /* the core logs it */
    else if (is == NULL)
        add_change(c, KVP_LOG_INFO, "%s %s left the pool", kind, name);
    else if (was == NULL)
        add_change(c, KVP_LOG_INFO, "%s %s joined the pool", kind, name);
    else if (is->state == KVP_SEG_LOST && is->is_drained && !is->is_tier)
        add_change(c, KVP_LOG_INFO, "node %s is away: it was drained, and no object is lost with it", name);
    else if (is->state == KVP_SEG_LOST)
        add_change(c, KVP_LOG_WARN, "%s %s is lost: its connection ended", kind, name);
    else if (is->state == KVP_SEG_DRAINING)
        add_change(c, KVP_LOG_INFO, "%s %s is draining", kind, name);
    else
        add_change(c, KVP_LOG_INFO, "%s %s is %s", kind, name,
                   was->state == KVP_SEG_LOST ? "back" : "up, and no longer draining");
}

static void
compare_nodes(kvp_changes_t *c)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < c->before.nodes_n; i++)
        if (find_node(&c->now, &c->before.nodes[i], &at) == NULL) compare_node(c, &c->before.nodes[i], NULL);
    at = 0;
    for (uint32_t i = 0; i < c->now.nodes_n; i++) {
        const kvp_master_node_t *was = find_node(&c->before, &c->now.nodes[i], &at);

        if (was == NULL || was->state != c->now.nodes[i].state) compare_node(c, was, &c->now.nodes[i]);
    }
}

/* Returns the length of the text's first part, which names the problem. Figures follow it after a colon. */
static int
name_len(const char *text)
{
    const char *end = strstr(text, ": ");

    return end == NULL ? (int)strlen(text) : (int)(end - text);
}

/* Returns whether the list has the problem with this code and name. The figures in the text may differ. */
static bool
has_wrong(const kvp_master_wrong_t *wrong, const char *code, const char *text)
{
    for (uint32_t i = 0; i < wrong->n; i++)
        if (strcmp(wrong->lines[i].code, code) == 0 && name_len(wrong->lines[i].text) == name_len(text) &&
            strncmp(wrong->lines[i].text, text, (size_t)name_len(text)) == 0)
            return true;
    return false;
}

/* Returns whether compare_node or compare_leader report this problem already. */
static bool
is_reported(const char *code)
{
    return strcmp(code, "node_lost") == 0 || strcmp(code, "ssd_away") == 0 || strcmp(code, "node_given_up") == 0 ||
           strcmp(code, "no_leader") == 0;
}

static void
compare_wrong(kvp_changes_t *c)
{
    const kvp_master_wrong_t *was = &c->before.wrong, *is = &c->now.wrong;
    /* level of the line about the master's log: only DEBUG, because the log's writer reports its own failure and the
     * cause */
    const kvp_log_level_t of_log = KVP_LOG_DEBUG;

    for (uint32_t i = 0; i < was->n; i++)
        if (!is_reported(was->lines[i].code) && !has_wrong(is, was->lines[i].code, was->lines[i].text))
            add_change(c, KVP_LOG_INFO, "over: %.*s", name_len(was->lines[i].text), was->lines[i].text);
    for (uint32_t i = 0; i < is->n; i++)
        if (!is_reported(is->lines[i].code) && !has_wrong(was, is->lines[i].code, is->lines[i].text))
            add_change(c, strcmp(is->lines[i].code, "log_failed") == 0 ? of_log : KVP_LOG_WARN, "%s",
                       is->lines[i].text);
}

/* Returns true if a node takes puts. A full list may lack further nodes, and one of them is assumed to take puts. */
static bool
has_node_up(const kvp_look_t *look)
{
    for (uint32_t i = 0; i < look->nodes_n; i++)
        if (!look->nodes[i].is_tier && look->nodes[i].state == KVP_SEG_UP) return true;
    return look->nodes_n == KVP_LABELLED_NODES;
}

/* Records when evictions and refusals begin, and when they end. */
static void
compare_counts(kvp_changes_t *c)
{
    const char *const texts[][2] = {
        {"evictions began: new objects take the memory of older ones", "evictions ended: none for a minute"},
        {has_node_up(&c->now) ? "puts are refused: no memory can be evicted for them"
                              : "puts are refused: no node is up that takes them",
         "puts are not refused any more, for a minute"}};

    for (uint32_t i = 0; i < KVP_ARRAY_LEN(texts); i++) {
        const bool has_risen = c->now.counts[i] > c->before.counts[i];

        if (has_risen && c->rose_ms[i] == 0) add_change(c, i == 0 ? KVP_LOG_INFO : KVP_LOG_WARN, "%s", texts[i][0]);
        if (has_risen) c->rose_ms[i] = c->now.at_ms;
        if (c->rose_ms[i] == 0 || c->now.at_ms - c->rose_ms[i] < SPELL_MS) continue;
        add_change(c, KVP_LOG_INFO, "%s", texts[i][1]);
        c->rose_ms[i] = 0;
    }
}

/* The election logs these, with the reason. */
static void
compare_leader(kvp_changes_t *c)
{
    const kvp_look_t *was = &c->before, *is = &c->now;

    if (is->is_leader && (!was->is_leader || was->term != is->term))
        add_change(c, KVP_LOG_DEBUG, "this master leads, in term %u", is->term);
    else if (!is->is_leader && is->leader[0] != '\0' && strcmp(was->leader, is->leader) != 0)
        add_change(c, KVP_LOG_DEBUG, "master %s leads, in term %u", is->leader, is->term);
    else if (!is->is_leader && is->leader[0] == '\0' && (was->is_leader || was->leader[0] != '\0'))
        add_change(c, KVP_LOG_DEBUG, "no master leads");
}

void
kvp_changes_note(kvp_changes_t *c)
{
    c->limit.burst = KVP_CHANGES_MAX;
    c->limit.interval_ms = 1000;
    compare_leader(c);
    if (c->before.at_ms != 0) compare_wrong(c);
    if (c->before.is_leader && c->now.is_leader) {
        compare_nodes(c);
        compare_counts(c);
    }
    c->before = c->now;
}
