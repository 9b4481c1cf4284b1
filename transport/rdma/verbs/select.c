/* SPDX-License-Identifier: Apache-2.0
 * Design notes. The kernel names devices, so any text without a comma or colon may be a name; whether such a device
 * exists turns out when the devices are opened. */
#include "transport/rdma/verbs/select.h"

#include "common/parse.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define PORT_MAX 255u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kvp_rdma_select_t chosen = {.gid_index = KVP_RDMA_GID_BEST}; /* the selection of the process; guarded by lock */

/* Parses one selected device, "NAME[:PORT]". */
static kvp_err_t
parse_pick(const char *text, size_t len, kvp_rdma_pick_t *pick_out)
{
    char one[KVP_RDMA_PICK_MAX + 4];
    uint64_t port = 0;
    char *colon;

    if (len >= sizeof one) return KVP_INVALID;
    snprintf(one, sizeof one, "%.*s", (int)len, text);
    colon = strchr(one, ':');
    if (colon != NULL) {
        *colon = '\0';
        if (kvp_parse_u64(colon + 1, &port) != KVP_OK || port == 0 || port > PORT_MAX) return KVP_INVALID;
    }
    if (one[0] == '\0' || strlen(one) >= sizeof pick_out->name) return KVP_INVALID;
    *pick_out = (kvp_rdma_pick_t){.port = (uint8_t)port};
    memcpy(pick_out->name, one, strlen(one));
    return KVP_OK;
}

/* Returns whether the last entry selects a port that an earlier entry selects. */
static bool
is_last_named_twice(const kvp_rdma_select_t *selected)
{
    const kvp_rdma_pick_t *last = &selected->picks[selected->picks_n - 1];

    for (const kvp_rdma_pick_t *it = selected->picks; it != last; it++)
        if (strcmp(it->name, last->name) == 0 && (it->port == last->port || it->port == 0 || last->port == 0))
            return true;
    return false;
}

static kvp_err_t
parse_picks(const char *text, kvp_rdma_select_t *selected, char *why, size_t cap)
{
    for (const char *at = *text == '\0' ? NULL : text; at != NULL;) {
        size_t len = strcspn(at, ",");

        if (selected->picks_n == KVP_RDMA_PICKS_MAX) {
            snprintf(why, cap, "more than %u RDMA devices are named", KVP_RDMA_PICKS_MAX);
            return KVP_INVALID;
        }
        if (parse_pick(at, len, &selected->picks[selected->picks_n++]) != KVP_OK) {
            snprintf(why, cap, "\"%.*s\" names no RDMA device: NAME[:PORT][,NAME[:PORT]] is expected, such as mlx5_0:1",
                     (int)kvp_min_u64(len, KVP_RDMA_PICK_MAX), at);
            return KVP_INVALID;
        }
        if (is_last_named_twice(selected)) {
            snprintf(why, cap, "RDMA device \"%.*s\" is named twice", (int)len, at);
            return KVP_INVALID;
        }
        at = at[len] == ',' ? at + len + 1 : NULL;
    }
    return KVP_OK;
}

kvp_err_t
kvp_rdma_select_parse(const char *devices, const char *gid_index, kvp_rdma_select_t *select_out, char *why, size_t cap)
{
    kvp_rdma_select_t selected = {.gid_index = KVP_RDMA_GID_BEST};
    uint64_t index;
    kvp_err_t err = devices == NULL ? KVP_OK : parse_picks(devices, &selected, why, cap);

    if (err != KVP_OK) return err;
    if (gid_index != NULL && gid_index[0] != '\0') {
        if (kvp_parse_u64(gid_index, &index) != KVP_OK || index > KVP_RDMA_GIDS_MAX) {
            snprintf(why, cap,
                     "\"%.32s\" is no GID index: a number from 0 to %u is expected, as `kvpool doctor` lists them",
                     gid_index, KVP_RDMA_GIDS_MAX);
            return KVP_INVALID;
        }
        selected.gid_index = (int)index;
    }
    *select_out = selected;
    return KVP_OK;
}

bool
kvp_rdma_select_takes(const kvp_rdma_select_t *selected, const char *name, uint8_t port)
{
    for (size_t i = 0; i < selected->picks_n; i++) {
        const kvp_rdma_pick_t *pick = &selected->picks[i];

        if (strcmp(pick->name, name) == 0 && (pick->port == 0 || pick->port == port)) return true;
    }
    return selected->picks_n == 0;
}

bool
kvp_rdma_select_is_any(const kvp_rdma_select_t *selected)
{
    return selected->picks_n == 0 && selected->gid_index == KVP_RDMA_GID_BEST;
}

void
kvp_rdma_select_set(const kvp_rdma_select_t *selected)
{
    pthread_mutex_lock(&lock);
    chosen = *selected;
    pthread_mutex_unlock(&lock);
}

void
kvp_rdma_select_get(kvp_rdma_select_t *select_out)
{
    pthread_mutex_lock(&lock);
    *select_out = chosen;
    pthread_mutex_unlock(&lock);
}

kvp_err_t
kvp_rdma_select(const char *devices, const char *gid_index, char *why, size_t cap)
{
    kvp_rdma_select_t selected;
    kvp_err_t err = kvp_rdma_select_parse(devices, gid_index, &selected, why, cap);

    if (err == KVP_OK) kvp_rdma_select_set(&selected);
    return err;
}

bool
kvp_rdma_has_adapter(void)
{
    DIR *dir = opendir("/sys/class/infiniband");
    const struct dirent *entry;
    bool is_there = false;

    while (dir != NULL && (entry = readdir(dir)) != NULL)
        is_there |= entry->d_name[0] != '.';
    if (dir != NULL) closedir(dir);
    return is_there;
}
