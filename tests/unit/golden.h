/* SPDX-License-Identifier: Apache-2.0
 * Golden files: whole records byte for byte. KVPOOL_GOLDEN_WRITE=1 makes them anew, which is only right together with
 * a new version of the format. Header only. */
#ifndef KVP_TESTS_UNIT_GOLDEN_H
#define KVP_TESTS_UNIT_GOLDEN_H

#include "tests/cases.h"

#include <stdio.h>
#include <stdlib.h>

static inline void
check_golden(const char *name, const void *bytes, size_t len)
{
    char path[1024];
    uint8_t golden[8192];

    snprintf(path, sizeof(path), "%s/golden_%s.bin", KVP_DATA_DIR, name);
    if (getenv("KVPOOL_GOLDEN_WRITE") != NULL) {
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        assert_int_equal(fwrite(bytes, 1, len, f), len);
        assert_int_equal(fclose(f), 0);
    }
    FILE *f = fopen(path, "rb");
    if (f == NULL) fail_msg("cannot open %s", path);
    size_t n = fread(golden, 1, sizeof(golden), f);
    fclose(f);
    assert_int_equal(n, len);
    assert_memory_equal(golden, bytes, len);
}

#endif
