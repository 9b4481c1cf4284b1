/* SPDX-License-Identifier: Apache-2.0
 * A process without CUDA: all memory is the host's, and it is told why. Nothing is loaded for the question. */
#include "transport/gpu/device.h"
#include "tests/cases.h"

#include <dlfcn.h>
#include <string.h>

TEST(test_a_process_without_cuda_is_told_so)
{
    const char *why = NULL;

    assert_int_equal(kvp_device_cuda.probe(&why), KVP_NOTSUP);
    assert_non_null(why);
    assert_non_null(strstr(why, "libcuda.so.1"));
    assert_null(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD));
}

TEST(test_memory_is_the_hosts)
{
    kvp_devmem_t mem = {.kind = KVP_MEM_DEVICE};
    char bytes[100] = {0};

    assert_int_equal(kvp_device_cuda.look(bytes, sizeof bytes, &mem), KVP_OK);
    assert_int_equal(mem.kind, KVP_MEM_HOST);
    assert_null(mem.ops);
}

TEST_MAIN()
