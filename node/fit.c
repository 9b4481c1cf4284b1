/* SPDX-License-Identifier: Apache-2.0
 * Checks whether the requested memory of a node fits into its machine and its control groups. Runs once at the start,
 * in the thread that opens the node. */
#include "node/priv.h"

#include "common/hostid.h"
#include "common/ram.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define OWN_BYTES (24ull << 20) /* the memory that the node's process itself needs */
#define TIER_BYTES (48ull << 20) /* the memory for buffers of the SSD tier */
#define DESC_SHARE 64u /* descriptors and keys take 1/64 of the payload's size if objects have 16 KiB */
/* the suggested size is reduced by 1/128, because other processes take and return memory all the time */
#define MARGIN_SHARE 128u
#define ASK_MS 200
#define ASKED_MAX 64u
#define OTHERS_TEXT_MAX 1024u

/* Asks the keeper at the socket for its state. Returns false if the keeper does not answer. */
static bool
ask_keeper(const char *dir, const char *name, kvp_keeper_msg_t *state_out)
{
    kvp_keeper_msg_t ask = kvp_keeper_msg_make(KVP_KEEPER_ASK, 0, NULL);
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), fds[KVP_KEEPER_FDS_MAX];
    int len = snprintf(at.sun_path, sizeof at.sun_path, "%s/%s", dir, name);
    bool has_answer;

    has_answer = fd >= 0 && len > 0 && (size_t)len < sizeof at.sun_path &&
                 connect(fd, (const struct sockaddr *)&at, sizeof at) == 0 && kvp_keeper_is_peer(fd) &&
                 kvp_keeper_send(fd, &ask, NULL, ASK_MS) == KVP_OK &&
                 kvp_keeper_recv(fd, state_out, fds, ASK_MS) == KVP_OK && state_out->kind == KVP_KEEPER_WELCOME &&
                 state_out->err == KVP_OK;
    if (fd >= 0) close(fd);
    return has_answer;
}

/* Writes a text about this user's keepers that hold memory without a node, and how to free the memory. own is the
 * node's name, whose keeper is left out. */
static void
list_keepers(const char *own, char text[OTHERS_TEXT_MAX])
{
    char dir_path[sizeof((struct sockaddr_un *)0)->sun_path], size[KVP_MIB_TEXT_MAX];
    DIR *dir = kvp_runtime_dir(dir_path, sizeof dir_path) == KVP_OK ? opendir(dir_path) : NULL;
    struct dirent *entry;
    size_t len = 0;

    text[0] = '\0';
    for (uint32_t n = 0; dir != NULL && n < ASKED_MAX && (entry = readdir(dir)) != NULL;) {
        kvp_keeper_msg_t state;
        const char *end = strrchr(entry->d_name, '.');

        if (strncmp(entry->d_name, "keeper-", 7) != 0 || end == NULL || strcmp(end, ".sock") != 0) continue;
        n++;
        if (!ask_keeper(dir_path, entry->d_name, &state) || state.held_bytes == 0 || strcmp(state.name, own) == 0)
            continue;
        len += (size_t)snprintf(text + len, OTHERS_TEXT_MAX - len,
                                "; the keeper of the node \"%s\", which ended, holds %s for another %llu s: start this "
                                "node again, or free the memory: kvpool-keeper --name %s --end yes",
                                state.name, kvp_format_mib(state.held_bytes, size),
                                (unsigned long long)(state.hold_ms / 1000), state.name);
        if (len >= OTHERS_TEXT_MAX) break;
    }
    if (dir != NULL) closedir(dir);
}

kvp_err_t
kvp_node_check_fit(const kvp_node_t *node, uint64_t held_bytes)
{
    uint64_t own = OWN_BYTES + (node->tiering.tier != NULL ? TIER_BYTES : 0), has, most;
    char wanted[KVP_MIB_TEXT_MAX], fits[KVP_MIB_TEXT_MAX], left[KVP_MIB_TEXT_MAX], all[KVP_MIB_TEXT_MAX];
    char others[OTHERS_TEXT_MAX];
    kvp_ram_t ram;

    kvp_ram_look("", &ram);
    if (ram.available_bytes == UINT64_MAX) return KVP_OK;
    has = kvp_min_u64(ram.available_bytes + held_bytes, ram.total_bytes);
    if (node->conf.size_bytes + node->conf.size_bytes / DESC_SHARE + own <= has) return KVP_OK;
    most = has <= own ? 0 : (has - own) / (DESC_SHARE + 1) * DESC_SHARE;
    most -= most / MARGIN_SHARE;
    list_keepers(node->conf.name, others);
    kvp_log_error("node",
                  "%s of memory do not fit: the largest possible is %s (--memory of a node, global_segment_size of "
                  "setup()), because %s has %s left of %s, and the node itself takes some%s",
                  kvp_format_mib(node->conf.size_bytes, wanted), kvp_format_mib(most, fits), ram.where,
                  kvp_format_mib(has, left), kvp_format_mib(ram.total_bytes, all), others);
    return KVP_NOMEM;
}
