/* SPDX-License-Identifier: Apache-2.0
 * An intrusive doubly linked list with a sentinel, header only. A node that is not linked points to itself. */
#ifndef KVP_COMMON_LIST_H
#define KVP_COMMON_LIST_H

#include "common/base.h"

typedef struct kvp_list {
    struct kvp_list *next;
    struct kvp_list *prev;
} kvp_list_t;

static inline void
kvp_list_init(kvp_list_t *l)
{
    l->next = l;
    l->prev = l;
}

static inline bool
kvp_list_is_empty(const kvp_list_t *l)
{
    return l->next == l;
}

static inline void
kvp_list_add_tail(kvp_list_t *head, kvp_list_t *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

static inline void
kvp_list_add_head(kvp_list_t *head, kvp_list_t *node)
{
    node->next = head->next;
    node->prev = head;
    head->next->prev = node;
    head->next = node;
}

/* kvp_list_del unlinks the node; legal on a node that is not linked. */
static inline void
kvp_list_del(kvp_list_t *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    kvp_list_init(node);
}

/* kvp_list_splice moves all nodes of `from` to the end of `to`. */
static inline void
kvp_list_splice(kvp_list_t *from, kvp_list_t *to)
{
    if (kvp_list_is_empty(from)) return;
    from->next->prev = to->prev;
    to->prev->next = from->next;
    from->prev->next = to;
    to->prev = from->prev;
    kvp_list_init(from);
}

#define kvp_list_entry(node, type, member) kvp_container_of(node, type, member)
#define kvp_list_first(head, type, member) kvp_list_entry((head)->next, type, member)
#define kvp_list_foreach(pos, head) for (kvp_list_t *pos = (head)->next; pos != (head); pos = pos->next)
#define kvp_list_foreach_safe(pos, tmp, head)                                                                          \
    for (kvp_list_t *pos = (head)->next, *tmp = pos->next; pos != (head); pos = tmp, tmp = pos->next)

#endif
