/* SPDX-License-Identifier: Apache-2.0
 * A device is a file (dev_path) that is there or not, and beside it a tree like that of sysfs. Its contexts are
 * numbered: a new one is opened when librdmacm is asked for its list after the device was added, and the old one
 * closed. */
#include "tests/unit/transport/fakeverbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/eventfd.h>

#define LIVES_MAX 8u
#define REFUSED_MAX 4u

typedef struct {
    struct ibv_context ctx;
    bool is_open;
    uint32_t lists; /* that name it */
    uint32_t pds, cqs, regs;
} life_t;

typedef struct {
    struct ibv_device device;
    bool is_there, has_failed;
    life_t lives[LIVES_MAX];
    uint32_t life; /* the last one */
} fake_dev_t;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char root[64];
    fake_dev_t devs[FAKE_DEVS_MAX];
    uint32_t devs_n;
    uint32_t next_key;
    struct {
        bool is_shut;
        uint32_t permits, begun;
    } gates[FAKE_KINDS];
    struct {
        const void *addr;
        int no;
    } refused[REFUSED_MAX];
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void
must(bool is_right, const char *what)
{
    if (is_right) return;
    fprintf(stderr, "fake verbs: %s\n", what);
    abort();
}

/* ---- contexts. All under the lock. */
static life_t *
life_of(struct ibv_context *ctx)
{
    life_t *life = kvp_container_of(ctx, life_t, ctx);

    must(life->is_open, "a context is used that librdmacm has closed");
    return life;
}

static void
life_end(life_t *life)
{
    must(life->pds == 0 && life->cqs == 0 && life->regs == 0, "a context is closed with something left on it");
    life->is_open = false;
    close(life->ctx.async_fd);
}

static void
life_begin(fake_dev_t *dev)
{
    life_t *life = &dev->lives[dev->life];

    life->ctx = (struct ibv_context){.device = &dev->device, .async_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    life->is_open = true;
}

/* It opens what is there, and closes what is not once no list names it. */
static struct ibv_context **
get_devices(int *n_out)
{
    struct ibv_context **list = calloc(FAKE_DEVS_MAX + 1, sizeof(struct ibv_context *));
    int n = 0;

    must(list != NULL, "no memory");
    pthread_mutex_lock(&fake.lock);
    for (uint32_t i = 0; i < fake.devs_n; i++) {
        fake_dev_t *dev = &fake.devs[i];
        life_t *life = &dev->lives[dev->life];

        if (!dev->is_there || dev->has_failed) continue;
        if (!life->is_open) life_begin(dev);
        life->lists++;
        list[n++] = &life->ctx;
    }
    pthread_mutex_unlock(&fake.lock);
    if (n_out != NULL) *n_out = n;
    if (n > 0) return list;
    free(list);
    return NULL;
}

static void
free_devices(struct ibv_context **list)
{
    pthread_mutex_lock(&fake.lock);
    for (struct ibv_context **at = list; *at != NULL; at++) {
        const fake_dev_t *dev = kvp_container_of((*at)->device, fake_dev_t, device);
        life_t *life = life_of(*at);

        if (--life->lists == 0 && (!dev->is_there || dev->has_failed || life != &dev->lives[dev->life])) life_end(life);
    }
    pthread_mutex_unlock(&fake.lock);
    free(list);
}

/* ---- what a port says */
static int
query_device(struct ibv_context *ctx, struct ibv_device_attr *attr)
{
    (void)ctx;
    *attr = (struct ibv_device_attr){
        .max_sge = 30, .max_qp_wr = 1000, .max_qp_init_rd_atom = 16, .max_mr_size = 1u << 30, .phys_port_cnt = 1};
    return 0;
}

static int
query_port(struct ibv_context *ctx, uint8_t port, struct _compat_ibv_port_attr *attr)
{
    struct ibv_port_attr at = {.state = IBV_PORT_ACTIVE,
                               .active_mtu = IBV_MTU_1024,
                               .gid_tbl_len = 1,
                               .max_msg_sz = 1u << 30,
                               .link_layer = IBV_LINK_LAYER_ETHERNET};

    (void)ctx, (void)port;
    memcpy((void *)attr, &at, sizeof at);
    return 0;
}

static int
query_gid(struct ibv_context *ctx, uint8_t port, int index, union ibv_gid *gid)
{
    fake_dev_t *dev = kvp_container_of(ctx->device, fake_dev_t, device);
    char text[INET6_ADDRSTRLEN];

    (void)port, (void)index;
    snprintf(text, sizeof text, "::ffff:10.99.%u.1", (unsigned)(dev - fake.devs) + 1);
    return inet_pton(AF_INET6, text, gid->raw) == 1 ? 0 : -1;
}

/* ---- what is made on a context */
static struct ibv_pd *
alloc_pd(struct ibv_context *ctx)
{
    struct ibv_pd *pd = calloc(1, sizeof *pd);

    must(pd != NULL, "no memory");
    pd->context = ctx;
    pthread_mutex_lock(&fake.lock);
    life_of(ctx)->pds++;
    pthread_mutex_unlock(&fake.lock);
    return pd;
}

static int
dealloc_pd(struct ibv_pd *pd)
{
    pthread_mutex_lock(&fake.lock);
    must(life_of(pd->context)->regs == 0, "a protection domain is given back with memory registered there");
    life_of(pd->context)->pds--;
    pthread_mutex_unlock(&fake.lock);
    free(pd);
    return 0;
}

static struct ibv_cq *
create_cq(struct ibv_context *ctx, int cqe, void *arg, struct ibv_comp_channel *channel, int vector)
{
    struct ibv_cq *cq = calloc(1, sizeof *cq);

    (void)cqe, (void)arg, (void)channel, (void)vector;
    must(cq != NULL, "no memory");
    cq->context = ctx;
    pthread_mutex_lock(&fake.lock);
    life_of(ctx)->cqs++;
    pthread_mutex_unlock(&fake.lock);
    return cq;
}

static int
destroy_cq(struct ibv_cq *cq)
{
    pthread_mutex_lock(&fake.lock);
    life_of(cq->context)->cqs--;
    pthread_mutex_unlock(&fake.lock);
    free(cq);
    return 0;
}

static void
pass(fake_call_t kind)
{
    fake.gates[kind].begun++;
    pthread_cond_broadcast(&fake.changed);
    while (fake.gates[kind].is_shut && fake.gates[kind].permits == 0)
        pthread_cond_wait(&fake.changed, &fake.lock);
    if (fake.gates[kind].is_shut) fake.gates[kind].permits--;
}

static int
get_async_event(struct ibv_context *ctx, struct ibv_async_event *event)
{
    uint64_t n;

    *event = (struct ibv_async_event){.event_type = IBV_EVENT_DEVICE_FATAL};
    return read(ctx->async_fd, &n, sizeof n) == sizeof n ? 0 : -1;
}

static void
ack_async_event(struct ibv_async_event *event)
{
    (void)event;
}

static int
refusal(const struct ibv_context *ctx, const void *addr)
{
    const fake_dev_t *dev = kvp_container_of(ctx->device, fake_dev_t, device);

    if (!dev->is_there || dev->has_failed) return EIO;
    for (uint32_t i = 0; i < REFUSED_MAX; i++)
        if (fake.refused[i].addr == addr) return fake.refused[i].no;
    return 0;
}

static struct ibv_mr *
reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access)
{
    struct ibv_mr *mr = calloc(1, sizeof *mr);
    int no;

    must((access & IBV_ACCESS_RELAXED_ORDERING) == 0,
         "what is written could be seen before what was written before it");
    must(mr != NULL, "no memory");
    pthread_mutex_lock(&fake.lock);
    pass(FAKE_REG);
    no = refusal(pd->context, addr);
    if (no == 0) {
        *mr = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = addr, .length = len};
        mr->lkey = mr->rkey = ++fake.next_key;
        life_of(pd->context)->regs++;
    }
    pthread_mutex_unlock(&fake.lock);
    if (no == 0) return mr;
    free(mr);
    errno = no;
    return NULL;
}

static int
dereg_mr(struct ibv_mr *mr)
{
    pthread_mutex_lock(&fake.lock);
    pass(FAKE_DEREG);
    life_of(mr->context)->regs--;
    pthread_mutex_unlock(&fake.lock);
    free(mr);
    return 0;
}

/* ---- ids */
static struct rdma_event_channel *
create_event_channel(void)
{
    static struct rdma_event_channel channel = {.fd = -1};

    return &channel;
}

static int
migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel)
{
    id->channel = channel;
    return 0;
}

static int
destroy_id(struct rdma_cm_id *id)
{
    pthread_mutex_lock(&fake.lock);
    pass(FAKE_LEAVE);
    pthread_mutex_unlock(&fake.lock);
    free(id);
    return 0;
}

static const kvp_rdma_libs_t libs = {
    .ibv_ack_async_event = ack_async_event,
    .ibv_alloc_pd = alloc_pd,
    .ibv_create_cq = create_cq,
    .ibv_dealloc_pd = dealloc_pd,
    .ibv_dereg_mr = dereg_mr,
    .ibv_destroy_cq = destroy_cq,
    .ibv_get_async_event = get_async_event,
    .ibv_query_device = query_device,
    .ibv_query_gid = query_gid,
    .ibv_query_port = query_port,
    .ibv_reg_mr = reg_mr,
    .rdma_create_event_channel = create_event_channel,
    .rdma_destroy_id = destroy_id,
    .rdma_free_devices = free_devices,
    .rdma_get_devices = get_devices,
    .rdma_migrate_id = migrate_id,
};

/* The linker puts it in the place of kvp_rdma_libs. */
const kvp_rdma_libs_t *__wrap_kvp_rdma_libs(const char **why_out);

const kvp_rdma_libs_t *
__wrap_kvp_rdma_libs(const char **why_out)
{
    *why_out = NULL;
    return &libs;
}

/* ---- the test's */
static void
run(const char *format, const char *at)
{
    char command[2 * IBV_SYSFS_PATH_MAX];

    snprintf(command, sizeof command, format, at, at);
    must(system(command) == 0, command);
}

void
fake_verbs_begin(uint32_t devs)
{
    memset(fake.devs, 0, sizeof fake.devs);
    memset(fake.gates, 0, sizeof fake.gates);
    memset(fake.refused, 0, sizeof fake.refused);
    snprintf(fake.root, sizeof fake.root, "/tmp/kvp-verbs-XXXXXX");
    must(mkdtemp(fake.root) != NULL, "no directory");
    fake.devs_n = devs;
    for (uint32_t i = 0; i < devs; i++) {
        struct ibv_device *device = &fake.devs[i].device;

        snprintf(device->name, sizeof device->name, "fake%u", i);
        snprintf(device->ibdev_path, sizeof device->ibdev_path, "%s/sys%u", fake.root, i);
        snprintf(device->dev_path, sizeof device->dev_path, "%s/dev%u", fake.root, i);
        run("mkdir -p %s/ports/1/gid_attrs/types && echo 'RoCE v2' > %s/ports/1/gid_attrs/types/0", device->ibdev_path);
        fake_verbs_add(i);
    }
}

void
fake_verbs_end(void)
{
    for (uint32_t i = 0; i < fake.devs_n; i++)
        for (uint32_t l = 0; l <= fake.devs[i].life; l++)
            life_end(&fake.devs[i].lives[l]);
    fake_verbs_leave();
}

void
fake_verbs_leave(void)
{
    run("rm -r %s", fake.root);
}

void
fake_verbs_remove(uint32_t dev)
{
    pthread_mutex_lock(&fake.lock);
    fake.devs[dev].is_there = false;
    must(unlink(fake.devs[dev].device.dev_path) == 0, "the device is not there");
    pthread_mutex_unlock(&fake.lock);
}

void
fake_verbs_add(uint32_t dev)
{
    fake_dev_t *d = &fake.devs[dev];
    int fd;

    pthread_mutex_lock(&fake.lock);
    if (d->lives[0].ctx.device != NULL) d->life++;
    must(d->life < LIVES_MAX, "too many lives");
    fd = open(d->device.dev_path, O_CREAT | O_CLOEXEC | O_WRONLY, 0600);
    must(fd >= 0, "the device cannot be made");
    close(fd);
    d->is_there = true;
    d->has_failed = false;
    pthread_mutex_unlock(&fake.lock);
}

void
fake_verbs_fail(uint32_t dev)
{
    fake_dev_t *d = &fake.devs[dev];
    uint64_t one = 1;

    pthread_mutex_lock(&fake.lock);
    d->has_failed = true;
    must(write(d->lives[d->life].ctx.async_fd, &one, sizeof one) == sizeof one, "no event");
    pthread_mutex_unlock(&fake.lock);
}

void
fake_verbs_refuse(const void *addr, int no)
{
    uint32_t i = 0;

    pthread_mutex_lock(&fake.lock);
    while (i < REFUSED_MAX && fake.refused[i].addr != addr && fake.refused[i].addr != NULL)
        i++;
    must(i < REFUSED_MAX, "too much is refused");
    fake.refused[i].addr = addr;
    fake.refused[i].no = no;
    pthread_mutex_unlock(&fake.lock);
}

void
fake_verbs_shut(fake_call_t kind)
{
    pthread_mutex_lock(&fake.lock);
    fake.gates[kind].is_shut = true;
    fake.gates[kind].permits = 0;
    pthread_mutex_unlock(&fake.lock);
}

void
fake_verbs_let(fake_call_t kind, uint32_t n)
{
    pthread_mutex_lock(&fake.lock);
    fake.gates[kind].permits += n;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
}

void
fake_verbs_open(fake_call_t kind)
{
    pthread_mutex_lock(&fake.lock);
    fake.gates[kind].is_shut = false;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
}

void
fake_verbs_await(fake_call_t kind, uint32_t n)
{
    pthread_mutex_lock(&fake.lock);
    while (fake.gates[kind].begun < n)
        pthread_cond_wait(&fake.changed, &fake.lock);
    pthread_mutex_unlock(&fake.lock);
}

uint32_t
fake_verbs_begun(fake_call_t kind)
{
    uint32_t n;

    pthread_mutex_lock(&fake.lock);
    n = fake.gates[kind].begun;
    pthread_mutex_unlock(&fake.lock);
    return n;
}

uint32_t
fake_verbs_regs(uint32_t dev)
{
    uint32_t n = 0;

    pthread_mutex_lock(&fake.lock);
    for (uint32_t l = 0; l <= fake.devs[dev].life; l++)
        n += fake.devs[dev].lives[l].regs;
    pthread_mutex_unlock(&fake.lock);
    return n;
}

bool
fake_verbs_is_open(uint32_t dev)
{
    bool is_open;

    pthread_mutex_lock(&fake.lock);
    is_open = fake.devs[dev].lives[fake.devs[dev].life].is_open;
    pthread_mutex_unlock(&fake.lock);
    return is_open;
}

struct rdma_cm_id *
fake_verbs_id(void)
{
    struct rdma_cm_id *id = calloc(1, sizeof *id);

    must(id != NULL, "no memory");
    return id;
}
