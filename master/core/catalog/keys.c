/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - An entry consists of the number of a prefix (0 = none), a word with the number of the following bytes and flags
 *   for packed digits and for a lineage, and the bytes. Entries of one size, in steps of four bytes, lie together in
 *   blocks of 64 KiB; a block is freed with its last entry. So every hole fits the next key of its size.
 * - A key is split after its last '@', '/' or ':'. The front part becomes a prefix when it occurs for the
 *   SEEN_ENOUGHth time; keys with rarer front parts are stored whole. A small table without chains counts how often
 *   each front part occurred. If another front part displaces it from the table, its count starts from zero again. */
#include "master/core/catalog/keys.h"

#include "common/hash.h"
#include "common/pages.h"
#include "common/recpool.h"
#include "master/core/base/ctx.h"
#include "master/core/base/umap.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES (64u << 10)
/* bits of a reference for the entry's index in its block; the other bits are the block's number */
#define INDEX_BITS 13u
#define BLOCKS_MAX (1u << (32 - INDEX_BITS))
#define STEP 4u /* sizes of the key store's entries are multiples of this number of bytes */
#define LINEAGE_BYTES offsetof(kvp_wire_lineage_t, is_told)
#define SIZE_MIN 8u
#define SIZE_MAX_BYTES (KVP_KEY_MAX + 4u + LINEAGE_BYTES)
#define CLASSES (SIZE_MAX_BYTES / STEP + 1)
#define NONE UINT32_MAX

#define PREFIXES_MAX 65535u
#define PREFIX_MIN 8u /* storing a key's prefix of this many bytes or less separately saves nothing */
#define SEEN_SLOTS 4096u
#define SEEN_ENOUGH 4u

#define FORM_PACKED 0x8000u
#define FORM_LINEAGE 0x4000u
#define FORM_BYTES 0x07ffu

typedef struct {
    uint16_t prefix; /* number of the key's prefix + 1; 0 = no prefix */
    uint16_t form; /* flags FORM_PACKED and FORM_LINEAGE, and the number of the key's bytes in `bytes` */
    uint8_t bytes[];
} entry_t;

typedef struct {
    uint32_t size; /* bytes of an entry */
    uint32_t n; /* number of entries in use */
    uint32_t made; /* number of the block's entries ever used, from its front; later memory was never touched */
    /* first freed entry, NONE = none; its first four bytes are the index of the next freed one */
    uint32_t free_head;
    uint32_t prev, next; /* links in the list of blocks of this size that have a free entry */
    _Alignas(STEP) uint8_t entries[];
} block_t;

_Static_assert((BLOCK_BYTES - sizeof(block_t)) / SIZE_MIN <= 1u << INDEX_BITS, "an index fits its bits");

typedef struct {
    uint8_t *bytes; /* owned */
    uint32_t refs; /* number of keys with this prefix */
    uint32_t hash;
    uint32_t next; /* number of the next prefix in the hash chain, or of the next free record */
    uint32_t len;
} prefix_t;

struct kvp_keystore {
    block_t **blocks; /* BLOCKS_MAX pointers to blocks, whose memory is touched as they fill; NULL = no block */
    uint32_t blocks_n; /* one above the highest block's number */
    uint32_t hole; /* all blocks below this number exist */
    uint32_t spare; /* number of an empty block that is kept for reuse; NONE = none */
    uint32_t open[CLASSES]; /* for each entry size, number of the first block with a free entry; NONE = none */
    uint32_t blocks_of[CLASSES]; /* for each entry size, how many blocks exist */
    kvp_recpool_t prefixes;
    uint32_t *chains; /* SEEN_SLOTS hash chains of prefixes */
    uint32_t seen[SEEN_SLOTS]; /* upper bits of a front part's hash; the lowest two bits count its occurrences */
    uint64_t seed;
    uint64_t memory_bytes;
};

kvp_keystore_t *
kvp_keystore_create(uint64_t seed)
{
    kvp_keystore_t *ks = kvp_core_alloc(1, sizeof *ks);

    ks->blocks = kvp_pages_alloc(BLOCKS_MAX * sizeof *ks->blocks);
    if (ks->blocks == NULL) kvp_panic("out of memory: directory of keys");
    ks->chains = kvp_core_alloc(SEEN_SLOTS, sizeof *ks->chains);
    memset(ks->chains, 0xff, SEEN_SLOTS * sizeof *ks->chains);
    memset(ks->open, 0xff, sizeof ks->open);
    ks->spare = NONE;
    ks->seed = seed;
    kvp_recpool_init(&ks->prefixes, sizeof(prefix_t), offsetof(prefix_t, next), PREFIXES_MAX);
    ks->memory_bytes = sizeof *ks + SEEN_SLOTS * sizeof *ks->chains;
    return ks;
}

static prefix_t *
prefix_at(const kvp_keystore_t *ks, uint32_t number)
{
    return kvp_recpool_at(&ks->prefixes, number);
}

void
kvp_keystore_destroy(kvp_keystore_t *ks)
{
    if (ks == NULL) return;
    for (uint32_t b = 0; b < ks->blocks_n; b++)
        kvp_pages_free(ks->blocks[b], BLOCK_BYTES);
    kvp_pages_free(ks->blocks, BLOCKS_MAX * sizeof *ks->blocks);
    for (uint32_t i = 0; i < SEEN_SLOTS; i++)
        for (uint32_t p = ks->chains[i]; p != NONE; p = prefix_at(ks, p)->next)
            free(prefix_at(ks, p)->bytes);
    kvp_recpool_fini(&ks->prefixes);
    free(ks->chains);
    free(ks);
}

/* ---- blocks */
static void
block_open(kvp_keystore_t *ks, uint32_t b)
{
    uint32_t *open = &ks->open[ks->blocks[b]->size / STEP];

    ks->blocks[b]->prev = NONE;
    ks->blocks[b]->next = *open;
    if (*open != NONE) ks->blocks[*open]->prev = b;
    *open = b;
}

static void
block_close(kvp_keystore_t *ks, uint32_t b)
{
    const block_t *block = ks->blocks[b];

    if (block->prev != NONE)
        ks->blocks[block->prev]->next = block->next;
    else
        ks->open[block->size / STEP] = block->next;
    if (block->next != NONE) ks->blocks[block->next]->prev = block->prev;
}

/* Makes a block for entries of this size. The first block of a size may stay nearly empty, so its memory is touched
 * only as it fills. */
static void
block_make(kvp_keystore_t *ks, uint32_t size)
{
    bool is_first = ks->blocks_of[size / STEP]++ == 0;

    while (ks->hole < ks->blocks_n && ks->blocks[ks->hole] != NULL)
        ks->hole++;
    if (ks->hole == BLOCKS_MAX) kvp_panic("more than %u blocks of keys", BLOCKS_MAX);
    ks->blocks[ks->hole] = is_first ? kvp_pages_alloc(BLOCK_BYTES) : kvp_pages_take(BLOCK_BYTES);
    if (ks->blocks[ks->hole] == NULL) kvp_panic("out of memory: %u blocks of keys", ks->blocks_n);
    ks->blocks[ks->hole]->size = size;
    ks->blocks[ks->hole]->free_head = NONE;
    ks->memory_bytes += sizeof(block_t);
    if (ks->hole == ks->blocks_n) ks->blocks_n++;
    block_open(ks, ks->hole);
}

static void
block_drop(kvp_keystore_t *ks, uint32_t b)
{
    block_close(ks, b);
    ks->blocks_of[ks->blocks[b]->size / STEP]--;
    ks->memory_bytes -= sizeof(block_t) + (uint64_t)ks->blocks[b]->made * ks->blocks[b]->size;
    kvp_pages_free(ks->blocks[b], BLOCK_BYTES);
    ks->blocks[b] = NULL;
    ks->hole = (uint32_t)kvp_min_u64(ks->hole, b);
    while (ks->blocks_n > 0 && ks->blocks[ks->blocks_n - 1] == NULL)
        ks->blocks_n--;
}

static uint32_t
entries_of(const block_t *block)
{
    return (BLOCK_BYTES - (uint32_t)sizeof(block_t)) / block->size;
}

/* ---- entries */
static entry_t *
entry_at(const kvp_keystore_t *ks, uint32_t ref)
{
    block_t *block = ks->blocks[ref >> INDEX_BITS];

    return (entry_t *)(void *)(block->entries + (size_t)(ref & ((1u << INDEX_BITS) - 1)) * block->size);
}

static uint32_t
entry_take(kvp_keystore_t *ks, uint32_t size)
{
    block_t *block;
    uint32_t b, i;

    if (ks->open[size / STEP] == NONE) block_make(ks, size);
    b = ks->open[size / STEP];
    block = ks->blocks[b];
    i = block->free_head;
    if (i == NONE) {
        i = block->made++;
        ks->memory_bytes += size;
    } else {
        memcpy(&block->free_head, entry_at(ks, b << INDEX_BITS | i), sizeof block->free_head);
    }
    if (++block->n == entries_of(block)) block_close(ks, b);
    if (ks->spare == b) ks->spare = NONE;
    return b << INDEX_BITS | i;
}

static void
entry_give(kvp_keystore_t *ks, uint32_t ref)
{
    uint32_t b = ref >> INDEX_BITS;
    block_t *block = ks->blocks[b];

    memcpy(entry_at(ks, ref), &block->free_head, sizeof block->free_head);
    block->free_head = ref & ((1u << INDEX_BITS) - 1);
    if (block->n-- == entries_of(block)) block_open(ks, b);
    if (block->n > 0) return;
    /* The block that was emptied last is kept, so that adding and deleting one key repeatedly does not allocate and
     * free a block each time. */
    if (ks->spare != NONE) block_drop(ks, ks->spare);
    ks->spare = b;
}

/* ---- prefixes */
static uint32_t *
chain_of(const kvp_keystore_t *ks, uint32_t hash)
{
    return &ks->chains[hash % SEEN_SLOTS];
}

static uint32_t
prefix_find(const kvp_keystore_t *ks, const void *bytes, size_t len, uint32_t hash)
{
    uint32_t number = *chain_of(ks, hash);

    for (; number != NONE; number = prefix_at(ks, number)->next) {
        const prefix_t *p = prefix_at(ks, number);

        if (p->hash == hash && p->len == len && memcmp(p->bytes, bytes, len) == 0) break;
    }
    return number;
}

/* Counts an occurrence of a key's front part. Returns true if this part has occurred often enough to be a prefix. */
static bool
is_worth(kvp_keystore_t *ks, uint32_t hash)
{
    uint32_t *seen = &ks->seen[hash / (UINT32_MAX / SEEN_SLOTS + 1)];

    if (((*seen ^ hash) & ~3u) != 0) *seen = hash & ~3u;
    if ((*seen & 3u) == SEEN_ENOUGH - 1) return true;
    ++*seen;
    return false;
}

static uint32_t
prefix_make(kvp_keystore_t *ks, const void *bytes, size_t len, uint32_t hash)
{
    uint32_t number = kvp_recpool_take(&ks->prefixes);
    prefix_t *p;

    if (number == KVP_RECPOOL_NONE) return NONE; /* no prefix number is free, so the key is stored whole */
    p = prefix_at(ks, number);
    *p = (prefix_t){
        .bytes = kvp_core_alloc(1, len),
        .hash = hash,
        .next = *chain_of(ks, hash),
        .len = (uint32_t)len,
    };
    memcpy(p->bytes, bytes, len);
    *chain_of(ks, hash) = number;
    ks->memory_bytes += len;
    return number;
}

static void
prefix_rele(kvp_keystore_t *ks, uint32_t number)
{
    prefix_t *p = prefix_at(ks, number);
    uint32_t *link = chain_of(ks, p->hash);

    if (--p->refs > 0) return;
    while (*link != number)
        link = &prefix_at(ks, *link)->next;
    *link = p->next;
    ks->memory_bytes -= p->len;
    free(p->bytes);
    kvp_recpool_give(&ks->prefixes, number);
}

/* Returns the length of a key's front part, which ends with the key's last separator; 0 = no front part. */
static size_t
front_len(const uint8_t *key, size_t len)
{
    static const char separators[] = {'@', '/', ':'};
    size_t end = PREFIX_MIN;

    for (size_t i = 0; i < sizeof separators && end < len; i++) {
        const uint8_t *last = memrchr(key + end, separators[i], len - end);

        if (last != NULL) end = (size_t)(last - key) + 1;
    }
    return end == PREFIX_MIN ? 0 : end;
}

/* Takes a reference to the prefix of the key, and returns its number; NONE = the key has no prefix (*len_out is 0). */
static uint32_t
prefix_hold(kvp_keystore_t *ks, const uint8_t *key, size_t len, size_t *len_out)
{
    size_t front = front_len(key, len);
    uint32_t hash, number;

    *len_out = 0;
    if (front == 0) return NONE;
    hash = (uint32_t)kvp_key_digest(ks->seed, 0, key, front).lo;
    number = prefix_find(ks, key, front, hash);
    if (number == NONE && is_worth(ks, hash)) number = prefix_make(ks, key, front, hash);
    if (number == NONE) return NONE;
    prefix_at(ks, number)->refs++;
    *len_out = front;
    return number;
}

/* ---- digits */
#define NO_DIGIT 16

/* Returns the value of a hexadecimal digit, or NO_DIGIT. Written for conditional moves, as branches on random digits
 * would be mispredicted. */
static uint8_t
digit_of(uint8_t c)
{
    uint8_t decimal = (uint8_t)(c - '0'), letter = (uint8_t)(c - 'a');

    return (uint8_t)(decimal < 10 ? decimal : letter < 6 ? letter + 10 : NO_DIGIT);
}

static bool
is_packable(const uint8_t *bytes, size_t len)
{
    uint8_t all = 0;

    for (size_t i = 0; i < len; i++)
        all |= digit_of(bytes[i]);
    return len != 0 && len % 2 == 0 && all < NO_DIGIT;
}

static void
pack_digits(uint8_t *to, const uint8_t *digits, size_t len)
{
    for (size_t i = 0; i < len; i += 2)
        *to++ = (uint8_t)(digit_of(digits[i]) << 4 | digit_of(digits[i + 1]));
}

static void
unpack_digits(uint8_t *to, const uint8_t *packed, size_t n)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < n; i++) {
        *to++ = (uint8_t)digits[packed[i] >> 4];
        *to++ = (uint8_t)digits[packed[i] & 15];
    }
}

/* ---- keys */
uint32_t
kvp_keystore_add(kvp_keystore_t *ks, const void *key, size_t len, const kvp_wire_lineage_t *lineage)
{
    size_t front, rest, n, behind = lineage != NULL && lineage->is_told != 0 ? LINEAGE_BYTES : 0;
    const uint8_t *bytes = key;
    uint32_t prefix = prefix_hold(ks, key, len, &front), ref;
    bool is_packed = is_packable(bytes + front, len - front);
    entry_t *e;

    rest = len - front;
    n = is_packed ? rest / 2 : rest;
    ref = entry_take(ks, (uint32_t)kvp_max_u64(SIZE_MIN, kvp_align_up(sizeof(entry_t) + n + behind, STEP)));
    e = entry_at(ks, ref);
    e->prefix = (uint16_t)(prefix + 1); /* NONE becomes 0 */
    e->form = (uint16_t)(n | (is_packed ? FORM_PACKED : 0) | (behind > 0 ? FORM_LINEAGE : 0));
    if (is_packed)
        pack_digits(e->bytes, bytes + front, rest);
    else
        memcpy(e->bytes, bytes + front, rest);
    if (behind > 0) memcpy(e->bytes + n, lineage, behind);
    return ref;
}

void
kvp_keystore_del(kvp_keystore_t *ks, uint32_t ref)
{
    const entry_t *e = entry_at(ks, ref);

    if (e->prefix != 0) prefix_rele(ks, e->prefix - 1u);
    entry_give(ks, ref);
}

uint16_t
kvp_keystore_len(const kvp_keystore_t *ks, uint32_t ref)
{
    const entry_t *e = entry_at(ks, ref);
    uint32_t rest = e->form & FORM_BYTES, front = e->prefix == 0 ? 0 : prefix_at(ks, e->prefix - 1u)->len;

    return (uint16_t)(front + ((e->form & FORM_PACKED) != 0 ? rest * 2 : rest));
}

uint16_t
kvp_keystore_copy(const kvp_keystore_t *ks, uint32_t ref, uint8_t *buf)
{
    const entry_t *e = entry_at(ks, ref);
    uint16_t len = kvp_keystore_len(ks, ref);

    if (e->prefix != 0) {
        const prefix_t *p = prefix_at(ks, e->prefix - 1u);

        memcpy(buf, p->bytes, p->len);
        buf += p->len;
    }
    if ((e->form & FORM_PACKED) != 0)
        unpack_digits(buf, e->bytes, e->form & FORM_BYTES);
    else
        memcpy(buf, e->bytes, e->form & FORM_BYTES);
    return len;
}

bool
kvp_keystore_equals(const kvp_keystore_t *ks, uint32_t ref, const void *key, size_t len)
{
    uint8_t kept[KVP_KEY_MAX];

    return kvp_keystore_len(ks, ref) == len && kvp_keystore_copy(ks, ref, kept) == len && memcmp(kept, key, len) == 0;
}

kvp_wire_lineage_t
kvp_keystore_lineage(const kvp_keystore_t *ks, uint32_t ref)
{
    const entry_t *e = entry_at(ks, ref);
    kvp_wire_lineage_t lineage = {.is_told = (e->form & FORM_LINEAGE) != 0};

    if (lineage.is_told != 0) memcpy(&lineage, e->bytes + (e->form & FORM_BYTES), LINEAGE_BYTES);
    return lineage;
}

uint64_t
kvp_keystore_memory_bytes(const kvp_keystore_t *ks)
{
    return ks->memory_bytes + ks->prefixes.memory_bytes;
}
