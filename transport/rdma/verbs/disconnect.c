/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - Destroying the id of a connection sends the peer a message. With the port down the message is lost, and the peer
 *   keeps its queue pair for ever. Soft RoCE is worse: a message that is sent while the network interface is down puts
 *   the port's management queue pair into an error state, in which it does not receive, so no connection by the device
 *   is possible until the device is added again (tests/rdma_vm/README.md).
 * - So an id whose port is down is parked on a channel of its own, without its queue pair. A later call of
 *   kvp_rdma_left_end destroys it when the port is up; at the exit of the process the kernel does. */
#include "transport/rdma/verbs/ibv.h"

#include "common/list.h"
#include "common/thread.h"

#include <net/if.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct {
    kvp_list_t link;
    struct rdma_cm_id *id;
    kvp_rdma_info_t dev;
} left_t;

static struct {
    pthread_mutex_t lock;
    struct rdma_event_channel *channel; /* the channel of the parked ids; lock guards this field and ids */
    kvp_list_t ids;
    _Atomic uint32_t n;
    _Atomic bool is_ending; /* a thread is ending parked ids */
} left = {.lock = PTHREAD_MUTEX_INITIALIZER, .ids = {&left.ids, &left.ids}};

/* Returns whether the network interface is up. It goes down before its routes are removed, while the port goes down
 * after. */
static bool
is_netdev_up(const char *name)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq ask;
    bool is_up;

    if (fd < 0) return true;
    memset(&ask, 0, sizeof ask);
    memcpy(ask.ifr_name, name, kvp_min_u64(strlen(name), sizeof ask.ifr_name - 1));
    is_up = ioctl(fd, SIOCGIFFLAGS, &ask) != 0 || (ask.ifr_flags & IFF_UP) != 0;
    close(fd);
    return is_up;
}

bool
kvp_rdma_is_present(const struct ibv_context *ctx)
{
    return access(ctx->device->dev_path, F_OK) == 0;
}

bool
kvp_rdma_port_is_up(const kvp_rdma_libs_t *libs, const struct rdma_cm_id *id, const kvp_rdma_info_t *dev)
{
    struct ibv_port_attr at = {0};

    if (id->verbs == NULL || !kvp_rdma_is_present(id->verbs)) return true; /* a removed device sends nothing */
    if (dev->netdev[0] != '\0' && !is_netdev_up(dev->netdev)) return false;
    if ((libs->ibv_query_port)(id->verbs, id->port_num, (struct _compat_ibv_port_attr *)&at) != 0) return true;
    return at.state == IBV_PORT_ACTIVE;
}

bool
kvp_rdma_disconnect_later(const kvp_rdma_libs_t *libs, struct rdma_cm_id *id, const kvp_rdma_info_t *dev)
{
    left_t *l = malloc(sizeof *l);
    bool is_taken = false;

    if (l == NULL) return false;
    l->id = id;
    l->dev = *dev;
    kvp_list_init(&l->link);
    pthread_mutex_lock(&left.lock);
    if (left.channel == NULL) left.channel = (libs->rdma_create_event_channel)();
    if (left.channel != NULL) is_taken = (libs->rdma_migrate_id)(id, left.channel) == 0;
    if (is_taken) {
        kvp_list_add_tail(&left.ids, &l->link);
        left.n++;
    }
    pthread_mutex_unlock(&left.lock);
    if (!is_taken) free(l);
    return is_taken;
}

/* Destroys the parked ids whose port is up, in a thread, because destroying an id may wait for the kernel. */
static void *
end_left(void *arg)
{
    const kvp_rdma_libs_t *libs = arg;
    kvp_list_t ids, stay;

    kvp_list_init(&ids);
    kvp_list_init(&stay);
    pthread_mutex_lock(&left.lock);
    kvp_list_splice(&left.ids, &ids);
    pthread_mutex_unlock(&left.lock);
    kvp_list_foreach_safe (pos, next, &ids) {
        left_t *l = kvp_list_entry(pos, left_t, link);

        kvp_list_del(&l->link);
        if (!kvp_rdma_port_is_up(libs, l->id, &l->dev)) {
            kvp_list_add_tail(&stay, &l->link);
            continue;
        }
        (libs->rdma_destroy_id)(l->id);
        free(l);
        left.n--;
    }
    pthread_mutex_lock(&left.lock);
    kvp_list_splice(&stay, &left.ids);
    pthread_mutex_unlock(&left.lock);
    left.is_ending = false;
    return NULL;
}

void
kvp_rdma_left_end(const kvp_rdma_libs_t *libs)
{
    if (left.n == 0 || atomic_exchange(&left.is_ending, true)) return;
    if (!kvp_detach(end_left, (void *)(uintptr_t)libs)) left.is_ending = false;
}
