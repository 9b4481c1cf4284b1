/* SPDX-License-Identifier: Apache-2.0
 * A process without CUDA: all memory is the host's, and it is told why. Nothing is loaded for the question.
 */
#include "transport/gpu/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <dlfcn.h>
#include <string.h>

static void
test_a_process_without_cuda_is_told_so(void **state)
{
    const char *why = NULL;

    (void)state;
    assert_int_equal(kvp_device_cuda.probe(&why), KVP_NOTSUP);
    assert_non_null(why);
    assert_non_null(strstr(why, "libcuda.so.1"));
    assert_null(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD));
}

static void
test_memory_is_the_hosts(void **state)
{
    kvp_devmem_t mem = {.kind = KVP_MEM_DEVICE};
    char bytes[100] = {0};

    (void)state;
    assert_int_equal(kvp_device_cuda.look(bytes, sizeof bytes, &mem), KVP_OK);
    assert_int_equal(mem.kind, KVP_MEM_HOST);
    assert_null(mem.ops);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_process_without_cuda_is_told_so),
        cmocka_unit_test(test_memory_is_the_hosts),
    };
    return cmocka_run_group_tests_name("device_none", tests, NULL, NULL);
}
