/* SPDX-License-Identifier: Apache-2.0
 * The model NIC: its state and its progress, devices, registrations, post and poll. Connections are
 * model_nic_conn.c's, what happens to requests on their way is model_nic_wire.c's. */
#include "tests/transport/model_nic_priv.h"

#include "common/clock.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FIRST_PORT 20000u
#define BUSY_STEPS 8u /* at most, that a call lets happen before it looks */

static pthread_mutex_t nic_lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_begun; /* guarded by nic_lock, as is everything below */
nic_t model_nic;

static inline nic_dev_t *
dev_of(kvp_rdma_dev_t *dev)
{
    return kvp_container_of(dev, nic_dev_t, base);
}

/* splitmix64 */
uint64_t
nic_below(uint64_t n)
{
    uint64_t z = model_nic.rng += 0x9e3779b97f4a7c15ull;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (z ^ (z >> 31)) % n;
}

bool
nic_coin(void)
{
    return nic_below(2) == 0;
}

/* Progress */

static uint64_t
list_len(const kvp_list_t *list)
{
    uint64_t n = 0;

    kvp_list_foreach (node, list)
        n++;
    return n;
}

/* The first from a random one on, around the list, to which something can happen. */
static bool
step_list(kvp_list_t *list, bool (*act)(kvp_list_t *node))
{
    uint64_t n = list_len(list);
    kvp_list_t *at = list->next;

    if (n == 0) return false;
    for (uint64_t skip = nic_below(n); skip > 0; skip--)
        at = at->next;
    for (uint64_t i = 0; i < n; i++) {
        kvp_list_t *node = at;

        at = at->next == list ? list->next : at->next;
        if (act(node)) return true;
    }
    return false;
}

static bool
act_cm(kvp_list_t *node)
{
    return nic_deliver_some(kvp_list_entry(node, nic_cm_t, link));
}

static bool
act_id(kvp_list_t *node)
{
    return wire_act(kvp_list_entry(node, nic_id_t, link));
}

static bool
step(void)
{
    if (model_nic.is_paused) return false;
    if (nic_below(4) == 0) return step_list(&model_nic.cms, act_cm) || step_list(&model_nic.ids, act_id);
    return step_list(&model_nic.ids, act_id) || step_list(&model_nic.cms, act_cm);
}

void
nic_step_some(void)
{
    for (uint64_t n = nic_below(BUSY_STEPS + 1); n > 0 && step(); n--)
        continue;
}

/* Whoever armed will sleep, and nobody else may step: its completion comes now if it can. */
static void
step_until_fired(const nic_id_t *q)
{
    while (q->is_armed && !kvp_list_is_empty(&q->sq) && step())
        continue;
}

static void
wake_armed(void)
{
    kvp_list_foreach (node, &model_nic.ids)
        step_until_fired(kvp_list_entry(node, nic_id_t, link));
}

/* Devices and registrations */

static void
dev_init(nic_dev_t *dev, uint32_t i)
{
    const model_nic_conf_t *conf = &model_nic.conf;
    struct sockaddr_in *in = (struct sockaddr_in *)&dev->base.info.addr;

    *dev = (nic_dev_t){.index = i};
    snprintf(dev->base.info.name, sizeof dev->base.info.name, "model%u", i);
    dev->base.info.port = 1;
    dev->base.info.numa_node = -1;
    dev->base.info.mtu_bytes = 4096;
    dev->base.info.is_soft = conf->is_soft;
    dev->base.info.max_sge = KVP_RDMA_SGE_MAX;
    dev->base.info.max_wr = MODEL_NIC_WR_MAX;
    dev->base.info.max_reads = conf->max_reads;
    dev->base.info.max_reg_bytes = conf->max_reg_bytes;
    dev->base.info.max_msg_bytes = conf->max_msg_bytes;
    in->sin_family = AF_INET;
    in->sin_addr.s_addr = htonl(conf->is_loopback && i == 0 ? INADDR_LOOPBACK : 0x0a630001u + ((i + 1) << 8));
}

static void
conf_fill(const model_nic_conf_t *conf)
{
    model_nic_conf_t *c = &model_nic.conf;

    if (conf != NULL) *c = *conf;
    if (c->devs_n == 0) c->devs_n = 1;
    if (c->devs_n > MODEL_NIC_DEVS_MAX) kvp_panic("model nic: too many devices");
    if (c->max_reads == 0) c->max_reads = 16;
    if (c->max_msg_bytes == 0) c->max_msg_bytes = 1ull << 30;
    if (c->max_reg_bytes == 0) c->max_reg_bytes = 1ull << 40;
    if (c->memlock_bytes == 0) c->memlock_bytes = UINT64_MAX;
    if (c->retry_steps == 0) c->retry_steps = 32;
}

static void
begin(uint64_t seed, const model_nic_conf_t *conf)
{
    memset(&model_nic, 0, sizeof model_nic);
    model_nic.rng = seed;
    conf_fill(conf);
    model_nic.next_port = FIRST_PORT;
    kvp_list_init(&model_nic.cms);
    kvp_list_init(&model_nic.ids);
    for (uint32_t i = 0; i < MODEL_NIC_DEVS_MAX; i++)
        dev_init(&model_nic.devs[i], i);
    for (size_t i = 0; i < KVP_ARRAY_LEN(model_nic.weights); i++)
        model_nic.weights[i] = 1u << (3 * nic_below(3)); /* 1, 8 or 64 */
    is_begun = true;
}

void
nic_enter(void)
{
    pthread_mutex_lock(&nic_lock);
    if (!is_begun) begin(1, NULL);
}

void
nic_exit(void)
{
    pthread_mutex_unlock(&nic_lock);
}

static kvp_err_t
nic_devs_open(const kvp_rdma_select_t *selected, kvp_rdma_dev_t **devs_out, size_t cap, size_t *n_out,
              const char **why_out)
{
    size_t n;

    (void)selected; /* the test made the devices, and there is always one */
    *why_out = "";
    nic_enter();
    n = (size_t)kvp_min_u64(cap, model_nic.conf.devs_n);
    for (size_t i = 0; i < n; i++)
        devs_out[i] = &model_nic.devs[i].base;
    *n_out = n;
    model_nic.opens++;
    nic_exit();
    return KVP_OK;
}

static void
nic_devs_close(void)
{
    nic_enter();
    if (model_nic.opens-- == 0) kvp_panic("model nic: devs_close without devs_open");
    nic_exit();
}

static void
reg_set_keys(nic_dev_t *dev, nic_reg_t *reg)
{
    if (!model_nic.conf.reuses_keys) dev->gens[reg->slot]++;
    reg->base.lkey = ((dev->gens[reg->slot] + 1) * REGS_MAX + reg->slot) << 1;
    reg->base.rkey = reg->base.lkey | 1;
}

static void
reg_come_back(nic_dev_t *dev, nic_reg_t *reg)
{
    if (reg->access == KVP_RDMA_LOCAL && reg->addr == model_nic.refused_addr) reg->base.is_lost = true;
    if (reg->base.is_lost)
        reg->base.lkey = reg->base.rkey = 0;
    else
        reg_set_keys(dev, reg);
}

static void
dev_look(nic_dev_t *dev)
{
    if (dev->state == DEV_REMOVED) dev->base.is_gone = true;
    if (dev->state != DEV_BACK) return;
    for (uint32_t slot = 0; slot < REGS_MAX; slot++)
        if (dev->regs[slot] != NULL) reg_come_back(dev, dev->regs[slot]);
    dev->state = DEV_HERE;
    dev->base.life++;
    dev->base.is_gone = false;
}

static void
nic_devs_look(void)
{
    nic_enter();
    for (uint32_t i = 0; i < model_nic.conf.devs_n; i++)
        dev_look(&model_nic.devs[i]);
    nic_exit();
}

/* Keys: bit 0 tells local from remote, then the slot, then which of the slot's registrations it is. */
static kvp_err_t
reg_place(nic_dev_t *dev, nic_reg_t *reg)
{
    if (reg->len > model_nic.conf.memlock_bytes - dev->locked_bytes) return KVP_NOMEM;
    for (uint32_t i = 0; i < REGS_MAX; i++) {
        uint32_t slot = (dev->last_slot + i) % REGS_MAX;

        if (dev->regs[slot] != NULL) continue;
        dev->regs[slot] = reg;
        dev->locked_bytes += reg->len;
        dev->last_slot = slot;
        reg->slot = slot;
        reg_set_keys(dev, reg);
        return KVP_OK;
    }
    return KVP_NOMEM;
}

static void
reg_free(nic_reg_t *reg)
{
    if (reg->map != NULL) munmap(reg->map, reg->len);
    if (reg->dmabuf_fd >= 0) close(reg->dmabuf_fd);
    free(reg);
}

static kvp_err_t
map_dmabuf(nic_reg_t *reg, int fd)
{
    off_t at = lseek(fd, 0, SEEK_CUR);
    void *map;

    if (model_nic.conf.has_no_dmabuf || reg->access != KVP_RDMA_LOCAL) return KVP_NOTSUP;
    map = mmap(NULL, reg->len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);
    if (map == MAP_FAILED) return KVP_INVALID;
    reg->map = map;
    reg->dmabuf_fd = dup(fd);
    return reg->dmabuf_fd < 0 ? KVP_SYS : KVP_OK;
}

/* Memory of the host, as the kernel finds it: what a process may not touch it does not pin either. */
static kvp_err_t
find_pages(nic_reg_t *reg)
{
    int ends[2];
    bool is_readable;

    reg->is_peer = model_nic.conf.peer_memory != NULL && model_nic.conf.peer_memory(reg->addr, reg->len) != NULL;
    if (reg->is_peer) return KVP_OK;
    if (pipe(ends) != 0) return KVP_SYS;
    is_readable = write(ends[1], reg->addr, 1) == 1; /* EFAULT if this process may not read the page */
    (void)close(ends[0]);
    (void)close(ends[1]);
    return is_readable ? KVP_OK : KVP_INVALID;
}

static kvp_err_t
nic_reg(kvp_rdma_dev_t *dev, void *addr, size_t len, kvp_rdma_access_t access, int dmabuf_fd, kvp_rdma_reg_t **reg_out)
{
    nic_reg_t *reg;
    kvp_err_t err;

    if (len == 0 || len > dev->info.max_reg_bytes) return KVP_INVALID;
    if (model_nic.conf.on_reg != NULL) model_nic.conf.on_reg(access);
    reg = calloc(1, sizeof *reg);
    if (reg == NULL) return KVP_NOMEM;
    *reg = (nic_reg_t){.base.dev = dev, .addr = addr, .len = len, .access = access, .dmabuf_fd = -1};
    nic_enter();
    err = dmabuf_fd >= 0 ? map_dmabuf(reg, dmabuf_fd) : find_pages(reg);
    if (err == KVP_OK) err = reg_place(dev_of(dev), reg);
    if (err == KVP_OK) model_nic.regs_n++;
    nic_exit();
    if (err != KVP_OK) {
        reg_free(reg);
        return err;
    }
    *reg_out = &reg->base;
    return KVP_OK;
}

static void
reg_end(nic_reg_t *reg)
{
    nic_dev_t *dev = dev_of(reg->base.dev);

    wire_dereg(reg);
    dev->regs[reg->slot] = NULL;
    dev->locked_bytes -= reg->len;
    dev->last_slot = reg->slot;
    model_nic.regs_n--;
    reg_free(reg);
}

static void
nic_dereg(kvp_rdma_reg_t *base)
{
    nic_reg_t *reg = kvp_container_of(base, nic_reg_t, base);

    if (model_nic.conf.on_dereg != NULL) model_nic.conf.on_dereg(reg->access);
    nic_enter();
    reg_end(reg);
    nic_exit();
}

/* Data */

static kvp_err_t
check_wr(const nic_id_t *id, const kvp_rdma_wr_t *wr, uint64_t *len_out)
{
    bool is_inline = (wr->flags & KVP_RDMA_WR_INLINE) != 0;
    uint64_t len = 0;

    if (wr->sge_n > id->caps.sge || (is_inline && (wr->flags & KVP_RDMA_WR_READ) != 0)) return KVP_INVALID;
    for (uint32_t i = 0; i < wr->sge_n; i++)
        len += wr->sge[i].len;
    if (len > model_nic.conf.max_msg_bytes || (is_inline && len > id->caps.inline_bytes)) return KVP_INVALID;
    *len_out = len;
    return id->used < id->caps.sends ? KVP_OK : KVP_EAGAIN;
}

static void
count_wr(const kvp_rdma_wr_t *wr)
{
    model_nic_counts_t *c = &model_nic.counts;

    c->requests++;
    if ((wr->flags & KVP_RDMA_WR_INLINE) != 0) c->inlines++;
    if ((wr->flags & KVP_RDMA_WR_FENCE) != 0) c->fenced++;
    if ((wr->flags & KVP_RDMA_WR_SIGNALED) != 0) c->signaled++;
}

static kvp_err_t
nic_post(kvp_rdma_id_t *base, const kvp_rdma_wr_t *wrs, size_t n, size_t *n_out)
{
    nic_id_t *id = nic_id_of(base);
    kvp_err_t err = KVP_OK;
    size_t i = 0;

    nic_enter();
    if (id->state == ID_DEAD) err = KVP_DISCONNECTED;
    if (err == KVP_OK && id->state != ID_CONNECTED) err = KVP_INVALID;
    if (err == KVP_OK && model_nic.refuses_post) err = KVP_SYS;
    model_nic.refuses_post = false;
    if (err == KVP_OK) model_nic.counts.posts++;
    for (; i < n && err == KVP_OK; i += err == KVP_OK) {
        uint64_t len = 0;

        err = check_wr(id, &wrs[i], &len);
        if (err == KVP_OK) err = wire_queue(id, &wrs[i], len);
        if (err == KVP_OK) count_wr(&wrs[i]);
    }
    *n_out = i;
    nic_exit();
    return err;
}

static size_t
nic_poll(kvp_rdma_id_t *base, kvp_rdma_wc_t *wcs, size_t cap)
{
    nic_id_t *id = nic_id_of(base);
    size_t n = 0;

    nic_enter();
    nic_step_some();
    for (; n < cap && id->cq_n > 0 && id->state != ID_DEAD; n++) {
        const nic_cqe_t *e = &id->cq[id->cq_head];

        wcs[n] = e->wc;
        id->used -= e->covers;
        id->cq_head = (id->cq_head + 1) % id->caps.sends;
        id->cq_n--;
        model_nic.counts.completions++;
        model_nic.counts.failures += wcs[n].status != KVP_RDMA_WC_OK;
    }
    nic_exit();
    return n;
}

static kvp_err_t
nic_arm(kvp_rdma_id_t *base)
{
    nic_id_t *id = nic_id_of(base);
    kvp_err_t err = KVP_OK;

    nic_enter();
    if (base->cq_fd < 0) err = KVP_INVALID;
    if (id->state == ID_DEAD) err = KVP_DISCONNECTED;
    if (err == KVP_OK) {
        model_nic.counts.arms++;
        wire_fd_clear(base->cq_fd);
        nic_step_some(); /* completions from before are not told: hence the poll after it */
        id->is_armed = true;
        step_until_fired(id);
    }
    nic_exit();
    return err;
}

/* The tests' own calls */

size_t
model_nic_reset(uint64_t seed, const model_nic_conf_t *conf)
{
    size_t left;

    nic_enter();
    left = list_len(&model_nic.ids) + list_len(&model_nic.cms) + model_nic.regs_n + model_nic.opens;
    while (!kvp_list_is_empty(&model_nic.cms))
        nic_cm_end(kvp_list_first(&model_nic.cms, nic_cm_t, link));
    for (uint32_t d = 0; d < MODEL_NIC_DEVS_MAX; d++)
        for (uint32_t i = 0; i < REGS_MAX; i++)
            if (model_nic.devs[d].regs[i] != NULL) reg_end(model_nic.devs[d].regs[i]);
    begin(seed, conf);
    nic_exit();
    return left;
}

bool
model_nic_step(void)
{
    bool is_any;

    nic_enter();
    is_any = step();
    nic_exit();
    return is_any;
}

void
model_nic_settle(void)
{
    while (model_nic_step())
        continue;
}

void
model_nic_pause(bool is_paused)
{
    nic_enter();
    model_nic.is_paused = is_paused;
    wake_armed();
    nic_exit();
}

void
model_nic_path(uint32_t dev_a, uint32_t dev_b, bool is_up)
{
    nic_enter();
    model_nic.is_down[dev_a][dev_b] = !is_up;
    model_nic.is_down[dev_b][dev_a] = !is_up;
    wake_armed();
    nic_exit();
}

void
model_nic_silence(uint32_t asking_dev, uint32_t serving_dev)
{
    nic_enter();
    kvp_list_foreach (node, &model_nic.ids) {
        nic_id_t *id = kvp_list_entry(node, nic_id_t, link);

        if (id->peer == NULL || id->dev == NULL || id->peer->dev == NULL) continue;
        if (id->dev->index != asking_dev || id->peer->dev->index != serving_dev) continue;
        id->is_silent = true;
        id->base.give_up_ns = KVP_NS_PER_MS;
    }
    nic_exit();
}

void
model_nic_remove(uint32_t dev, bool is_told)
{
    nic_enter();
    model_nic.devs[dev].state = DEV_REMOVED;
    kvp_list_foreach_safe (node, next, &model_nic.ids) {
        nic_id_t *id = kvp_list_entry(node, nic_id_t, link);

        if (id->dev == &model_nic.devs[dev]) nic_id_dev_removed(id, is_told);
    }
    nic_exit();
}

static size_t
uses(const nic_dev_t *dev)
{
    size_t n = 0;

    kvp_list_foreach (node, &model_nic.ids)
        n += kvp_list_entry(node, nic_id_t, link)->dev == dev;
    return n;
}

size_t
model_nic_uses(uint32_t dev)
{
    size_t n;

    nic_enter();
    n = uses(&model_nic.devs[dev]);
    nic_exit();
    return n;
}

size_t
model_nic_regs(void)
{
    size_t n;

    nic_enter();
    n = model_nic.regs_n;
    nic_exit();
    return n;
}

void
model_nic_return(uint32_t dev)
{
    nic_enter();
    if (uses(&model_nic.devs[dev]) > 0) kvp_panic("model nic: a device is given back that was not let go");
    model_nic.devs[dev].state = DEV_BACK;
    model_nic.devs[dev].base.is_gone = true;
    nic_exit();
}

void
model_nic_refuse_memory(const void *addr)
{
    nic_enter();
    model_nic.refused_addr = addr;
    nic_exit();
}

void
model_nic_refuse_post(void)
{
    nic_enter();
    model_nic.refuses_post = true;
    nic_exit();
}

void
model_nic_kill(kvp_rdma_cm_t *base, bool is_silent)
{
    nic_cm_t *cm = nic_cm_of(base);

    nic_enter();
    cm->is_dead = true;
    kvp_list_foreach (node, &model_nic.ids) {
        nic_id_t *id = kvp_list_entry(node, nic_id_t, link);

        if (id->base.cm != base) continue;
        nic_id_leave(id, is_silent);
        id->state = ID_DEAD;
    }
    nic_exit();
}

void
model_nic_counts(model_nic_counts_t *counts_out)
{
    nic_enter();
    *counts_out = model_nic.counts;
    nic_exit();
}

const kvp_verbs_ops_t kvp_verbs_model = {
    .name = "model",
    .devs_open = nic_devs_open,
    .devs_close = nic_devs_close,
    .devs_look = nic_devs_look,
    .reg = nic_reg,
    .dereg = nic_dereg,
    .cm_open = nic_cm_open,
    .cm_close = nic_cm_close,
    .cm_next = nic_cm_next,
    .listen = nic_listen,
    .connect = nic_connect,
    .qp_make = nic_qp_make,
    .ask = nic_ask,
    .accept = nic_accept,
    .refuse = nic_refuse,
    .id_close = nic_id_close,
    .post = nic_post,
    .poll = nic_poll,
    .arm = nic_arm,
};
