/* SPDX-License-Identifier: Apache-2.0 */
#include "master/core/keystore.h"

#include "common/recpool.h"
#include "master/core/umap.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    uint8_t *bytes;
    uint32_t len;
    uint32_t link;
} entry_t;

struct kvp_keystore {
    kvp_recpool_t entries;
    uint64_t bytes;
};

kvp_keystore_t *
kvp_keystore_create(uint64_t seed)
{
    kvp_keystore_t *ks = kvp_core_alloc(1, sizeof *ks);

    (void)seed;
    kvp_recpool_init(&ks->entries, sizeof(entry_t), offsetof(entry_t, link), UINT32_MAX);
    return ks;
}

void
kvp_keystore_destroy(kvp_keystore_t *ks)
{
    if (ks == NULL) return;
    for (uint32_t i = 0; i < kvp_recpool_limit(&ks->entries); i++)
        if (kvp_recpool_was_made(&ks->entries, i)) free(((entry_t *)kvp_recpool_at(&ks->entries, i))->bytes);
    kvp_recpool_fini(&ks->entries);
    free(ks);
}

uint32_t
kvp_keystore_add(kvp_keystore_t *ks, const void *key, size_t len)
{
    uint32_t ref = kvp_recpool_take(&ks->entries);
    entry_t *e;

    if (ref == KVP_RECPOOL_NONE) kvp_panic("out of memory: keys");
    e = kvp_recpool_at(&ks->entries, ref);
    *e = (entry_t){.bytes = kvp_core_alloc(1, len), .len = (uint32_t)len};
    memcpy(e->bytes, key, len);
    ks->bytes += len;
    return ref;
}

void
kvp_keystore_del(kvp_keystore_t *ks, uint32_t ref)
{
    entry_t *e = kvp_recpool_at(&ks->entries, ref);

    ks->bytes -= e->len;
    free(e->bytes);
    e->bytes = NULL;
    kvp_recpool_give(&ks->entries, ref);
}

uint16_t
kvp_keystore_len(const kvp_keystore_t *ks, uint32_t ref)
{
    return (uint16_t)((entry_t *)kvp_recpool_at(&ks->entries, ref))->len;
}

bool
kvp_keystore_equals(const kvp_keystore_t *ks, uint32_t ref, const void *key, size_t len)
{
    const entry_t *e = kvp_recpool_at(&ks->entries, ref);

    return e->len == len && memcmp(e->bytes, key, len) == 0;
}

uint16_t
kvp_keystore_copy(const kvp_keystore_t *ks, uint32_t ref, uint8_t *buf)
{
    const entry_t *e = kvp_recpool_at(&ks->entries, ref);

    memcpy(buf, e->bytes, e->len);
    return (uint16_t)e->len;
}

uint64_t
kvp_keystore_memory_bytes(const kvp_keystore_t *ks)
{
    return ks->entries.memory_bytes + ks->bytes;
}
