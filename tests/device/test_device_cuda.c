/* SPDX-License-Identifier: Apache-2.0
 * CUDA behind transport/gpu/device.h, against a driver without a device: which calls are made, in which context, and
 * what is made of their answers. */
#include "transport/gpu/device.h"

#include "tests/device/fake_cuda.h"
#include "tests/cases.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BYTES 10000u

static const kvp_device_ops_t *ops = &kvp_device_cuda;

static uint8_t *device; /* BYTES of it, of each test */

static int
setup(void **state)
{
    (void)state;
    fake_cuda_reset();
    device = fake_cuda_alloc(BYTES, FAKE_CUDA_PLAIN);
    return device != NULL ? 0 : -1;
}

static int
teardown(void **state)
{
    fake_cuda_left_t left;

    (void)state;
    fake_cuda_free(device);
    left = fake_cuda_left();
    fake_cuda_set_current(NULL);
    return left.allocations == 0 && left.streams == 0 && left.pinned_bytes == 0 ? 0 : -1;
}

static kvp_devmem_t
look(const void *addr, size_t len)
{
    kvp_devmem_t mem;

    assert_int_equal(ops->look(addr, len, &mem), KVP_OK);
    return mem;
}

/* ---- what memory is */
TEST_WITH(test_look_tells_kinds_apart, setup, teardown)
{
    void *managed = fake_cuda_alloc(BYTES, FAKE_CUDA_MANAGED);
    char host[10];
    kvp_devmem_t mem;

    mem = look(host, sizeof host);
    assert_int_equal(mem.kind, KVP_MEM_HOST);
    assert_null(mem.ops);
    mem = look(managed, BYTES);
    assert_int_equal(mem.kind, KVP_MEM_MANAGED);
    assert_int_equal(fake_cuda_counts().sync_memops, 0);
    mem = look(device, BYTES);
    assert_int_equal(mem.kind, KVP_MEM_DEVICE);
    assert_ptr_equal(mem.ops, ops);
    assert_int_equal(mem.device, 0);
    assert_non_null(mem.context);
    assert_true(mem.has_dmabuf);
    assert_true(mem.has_peer);
    assert_int_equal(mem.flush, KVP_DEVICE_FLUSH_CALL);
    assert_int_equal(fake_cuda_counts().sync_memops, 1);
    fake_cuda_free(managed);
}

TEST_WITH(test_look_refuses_a_range_that_leaves_its_memory, setup, teardown)
{
    kvp_devmem_t mem;

    assert_int_equal(ops->look(device, BYTES + 1, &mem), KVP_INVALID);
    assert_int_equal(ops->look(device + BYTES - 1, 2, &mem), KVP_INVALID);
    assert_int_equal(ops->look(device + BYTES - 1, 1, &mem), KVP_OK);
}

TEST_WITH(test_look_finds_host_memory_where_cuda_is_not_initialized, setup, teardown)
{
    fake_cuda_knobs.not_initialized = 3;
    assert_int_equal(look(device, BYTES).kind, KVP_MEM_HOST);
}

/* Memory of no context is used in the device's primary one, which is kept once. */
TEST_WITH(test_pool_memory_gets_the_primary_context, setup, teardown)
{
    void *pool = fake_cuda_alloc(BYTES, FAKE_CUDA_POOL);
    kvp_devmem_t mem = look(pool, BYTES);

    assert_non_null(mem.context);
    assert_ptr_not_equal(mem.context, look(device, BYTES).context);
    assert_ptr_equal(look(pool, BYTES).context, mem.context);
    assert_int_equal(fake_cuda_counts().retains, 1);
    fake_cuda_free(pool);
}

/* ---- flushing */
TEST_WITH(test_flush_is_chosen_by_what_the_device_says, setup, teardown)
{
    kvp_devmem_t mem;

    fake_cuda_knobs.ordering = 100;
    mem = look(device, BYTES);
    assert_int_equal(mem.flush, KVP_DEVICE_FLUSH_NONE);
    assert_int_equal(ops->flush(&mem), KVP_OK);
    assert_int_equal(fake_cuda_counts().flushes, 0);

    fake_cuda_knobs.ordering = 0;
    fake_cuda_knobs.flush_options = 2; /* by the device's own streams only */
    mem = look(device, BYTES);
    assert_int_equal(mem.flush, KVP_DEVICE_FLUSH_IMPOSSIBLE);
    assert_int_equal(ops->flush(&mem), KVP_NOTSUP);
}

TEST_WITH(test_what_an_adapter_writes_is_seen_after_a_flush, setup, teardown)
{
    kvp_devmem_t mem = look(device, BYTES);
    char got[4] = {0};

    memcpy(fake_cuda_bus(device, 4), "abc", 4);
    fake_cuda_read(device, got, 4);
    assert_memory_equal(got, "\0\0\0", 4); /* the double is late */
    assert_int_equal(ops->flush(&mem), KVP_OK);
    fake_cuda_read(device, got, 4);
    assert_memory_equal(got, "abc", 4);
    assert_int_equal(fake_cuda_counts().flushes, 1);

    fake_cuda_knobs.flush = 999;
    assert_int_equal(ops->flush(&mem), KVP_SYS);
}

/* ---- dma-buf */
TEST_WITH(test_export_gives_whole_pages, setup, teardown)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    kvp_devmem_t mem = look(device, BYTES);
    kvp_dmabuf_t buf;
    char *mapped;

    fake_cuda_write(device + 100, "xyz", 4);
    assert_int_equal(ops->export_dmabuf(&mem, device + 100, BYTES - 100, &buf), KVP_OK);
    assert_ptr_equal(buf.addr, device);
    assert_int_equal(buf.len, (BYTES + page - 1) / page * page);
    mapped = mmap(NULL, buf.len, PROT_READ, MAP_SHARED, buf.fd, 0);
    assert_ptr_not_equal(mapped, MAP_FAILED);
    assert_string_equal(mapped + 100, "xyz");
    munmap(mapped, buf.len);
    close(buf.fd);
}

TEST_WITH(test_export_is_refused_where_it_cannot_be, setup, teardown)
{
    kvp_devmem_t mem = look(device, BYTES);
    kvp_dmabuf_t buf;

    fake_cuda_knobs.export_dmabuf = 801;
    assert_int_equal(ops->export_dmabuf(&mem, device, BYTES, &buf), KVP_NOTSUP);
    fake_cuda_knobs.export_dmabuf = 0;
    fake_cuda_knobs.has_dmabuf = 0;
    mem = look(device, BYTES);
    assert_false(mem.has_dmabuf);
    assert_int_equal(ops->export_dmabuf(&mem, device, BYTES, &buf), KVP_NOTSUP);
    assert_int_equal(fake_cuda_counts().exports, 0);
}

/* ---- copies */
TEST_WITH(test_copies_go_both_ways_and_are_over_after_wait, setup, teardown)
{
    kvp_devmem_t mem = look(device, BYTES);
    kvp_device_queue_t *queue;
    void *pinned;
    char got[6] = {0};

    assert_int_equal(ops->pinned_alloc(&mem, 4096, &pinned), KVP_OK);
    assert_int_equal(ops->queue_open(&mem, &queue), KVP_OK);
    assert_ptr_equal(queue->context, mem.context);
    memcpy(pinned, "hello", 6);
    assert_int_equal(ops->copy(queue, device + 7, pinned, 6), KVP_OK);
    assert_int_equal(ops->wait(queue), KVP_OK);
    fake_cuda_read(device + 7, got, 6);
    assert_string_equal(got, "hello");
    fake_cuda_write(device, "world", 6);
    assert_int_equal(ops->copy(queue, pinned, device, 6), KVP_OK);
    assert_string_equal(pinned, "hello"); /* the double is late */
    assert_int_equal(ops->wait(queue), KVP_OK);
    assert_string_equal(pinned, "world");
    ops->queue_close(queue);
    ops->pinned_free(&mem, pinned);
}

TEST_WITH(test_failures_of_the_driver_are_errors, setup, teardown)
{
    kvp_devmem_t mem = look(device, BYTES), lost = mem;
    kvp_device_queue_t *queue;
    char bytes[8];
    void *pinned;
    int gone;

    assert_int_equal(ops->queue_open(&mem, &queue), KVP_OK);
    fake_cuda_knobs.memcpy_async = 1;
    assert_int_equal(ops->copy(queue, bytes, device, sizeof bytes), KVP_SYS);
    fake_cuda_knobs.memcpy_async = 0;
    fake_cuda_knobs.synchronize = 700;
    assert_int_equal(ops->wait(queue), KVP_SYS);
    fake_cuda_knobs.synchronize = 0;
    fake_cuda_knobs.host_alloc = 2;
    assert_int_equal(ops->pinned_alloc(&mem, 10, &pinned), KVP_NOMEM);
    ops->queue_close(queue);
    lost.context = &gone; /* no context of the driver's */
    assert_int_equal(ops->queue_open(&lost, &queue), KVP_SYS);
    assert_int_equal(ops->flush(&lost), KVP_SYS);
}

/* ---- the caller's context */
TEST_WITH(test_the_callers_context_stays_current, setup, teardown)
{
    uint8_t *pool = fake_cuda_alloc(BYTES, FAKE_CUDA_POOL);
    kvp_devmem_t mem = look(device, BYTES), other = look(pool, BYTES);
    kvp_device_queue_t *queue;
    kvp_dmabuf_t buf;
    char bytes[8];
    void *pinned;

    fake_cuda_set_current(other.context);
    assert_int_equal(ops->queue_open(&mem, &queue), KVP_OK);
    assert_int_equal(ops->copy(queue, bytes, device, sizeof bytes), KVP_OK);
    assert_int_equal(ops->wait(queue), KVP_OK);
    ops->queue_close(queue);
    assert_int_equal(ops->pinned_alloc(&mem, 100, &pinned), KVP_OK);
    ops->pinned_free(&mem, pinned);
    assert_int_equal(ops->flush(&mem), KVP_OK);
    assert_int_equal(ops->export_dmabuf(&mem, device, BYTES, &buf), KVP_OK);
    close(buf.fd);
    fake_cuda_knobs.flush = 999;
    assert_int_equal(ops->flush(&mem), KVP_SYS);
    assert_ptr_equal(fake_cuda_current(), other.context);
    fake_cuda_free(pool);
}

TEST_WITH(test_probe_finds_what_the_process_has_loaded, setup, teardown)
{
    const char *why = "not asked";

    assert_int_equal(ops->probe(&why), KVP_OK);
    assert_null(why);
}

TEST_MAIN()
