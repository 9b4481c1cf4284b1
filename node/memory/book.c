/* SPDX-License-Identifier: Apache-2.0 */
#include "node/memory/book.h"

#include "transport/shm/mapping.h"
#include "common/forkguard.h"
#include "common/log.h"

#include <string.h>
#include <sys/stat.h>

#define COPIES_OFF 4096u
#define BOOK_MAX (64ull << 20)

typedef struct {
    uint64_t magic;
    uint32_t version;
    uint32_t chunk_n;
    uint8_t pool_id[16];
    uint8_t uuid[16];
    uint64_t digest_seed;
    uint64_t epoch;
    uint64_t size_bytes;
    uint64_t chunk_bytes;
    uint64_t check; /* the checksum of the head's fields before this one */
    _Atomic uint64_t is_whole;
} head_t;

/* The head of one of the two copies of the state; the valid copy with the higher number counts. */
typedef struct {
    uint64_t number;
    uint64_t len;
    uint64_t check; /* the checksum of the two fields before it and of the bytes that follow */
} copy_t;

_Static_assert(sizeof(head_t) == 96 && sizeof(copy_t) == 24, "a book is wire format");

static head_t *
head_of(const kvp_node_book_t *book)
{
    return book->mem.addr;
}

/* Returns the size of one copy of the state with its head. */
static uint64_t
copy_bytes(uint32_t chunk_n)
{
    return kvp_align_up(sizeof(copy_t) + KVP_BOOK_REST_BYTES + (uint64_t)chunk_n * KVP_BOOK_CHUNK_BYTES, 4096);
}

static uint64_t
book_bytes(uint32_t chunk_n)
{
    return kvp_align_up(COPIES_OFF + 2 * copy_bytes(chunk_n) + (uint64_t)chunk_n * sizeof(kvp_chunk_owner_t), 4096);
}

static copy_t *
copy_at(const kvp_node_book_t *book, uint64_t number)
{
    return (copy_t *)((uint8_t *)book->mem.addr + COPIES_OFF + (number & 1) * copy_bytes(head_of(book)->chunk_n));
}

static kvp_chunk_owner_t *
owner_at(const kvp_node_book_t *book, uint32_t chunk)
{
    uint64_t at = COPIES_OFF + 2 * copy_bytes(head_of(book)->chunk_n);

    return (kvp_chunk_owner_t *)((uint8_t *)book->mem.addr + at) + chunk;
}

kvp_err_t
kvp_node_book_make(kvp_node_book_t *book, const kvp_node_mem_t *mem)
{
    head_t head = {
        .magic = KVP_BOOK_MAGIC,
        .version = KVP_BOOK_VERSION,
        .chunk_n = mem->chunk_n,
        .digest_seed = mem->conf.digest_seed,
        .epoch = mem->conf.epoch,
        .size_bytes = mem->conf.size_bytes,
        .chunk_bytes = mem->conf.chunk_bytes,
    };

    memcpy(head.pool_id, mem->conf.pool_id, sizeof head.pool_id);
    memcpy(head.uuid, mem->uuid, sizeof head.uuid);
    head.check = kvp_sum(&head, offsetof(head_t, check));
    *book = (kvp_node_book_t){.mem = {.fd = -1}};
    if (!kvp_memfile_make("kvpool-book", book_bytes(mem->chunk_n), &book->mem)) {
        kvp_log_error("node", "cannot make the book that goes with the memory to the keeper: %m");
        kvp_memfile_leave(&book->mem);
        return KVP_SYS;
    }
    memcpy(book->mem.addr, &head, sizeof head);
    for (uint32_t i = 0; i < mem->chunk_n; i++)
        if (mem->chunks[i].tenant[0] != '\0') kvp_node_book_save_owner(book, mem, i);
    return KVP_OK;
}

void
kvp_node_book_close(kvp_node_book_t *book)
{
    kvp_memfile_leave(&book->mem);
    book->saves = 0;
}

kvp_err_t
kvp_node_book_open(kvp_node_book_t *book, int fd, kvp_node_mem_conf_t *conf_out, uint8_t uuid_out[16])
{
    kvp_err_t err = KVP_PROTO;
    const head_t *head;
    struct stat st;

    *book = (kvp_node_book_t){.mem = {.fd = fd}};
    if (fstat(fd, &st) != 0 || st.st_size < (off_t)COPIES_OFF || (uint64_t)st.st_size > BOOK_MAX ||
        !kvp_memfile_adopt(fd, (uint64_t)st.st_size, &book->mem))
        goto fail;
    head = head_of(book);
    if (head->magic != KVP_BOOK_MAGIC) goto fail;
    err = KVP_VERSION;
    if (head->version != KVP_BOOK_VERSION) goto fail;
    *conf_out = (kvp_node_mem_conf_t){.digest_seed = head->digest_seed,
                                      .epoch = head->epoch,
                                      .size_bytes = head->size_bytes,
                                      .chunk_bytes = head->chunk_bytes};
    memcpy(conf_out->pool_id, head->pool_id, sizeof conf_out->pool_id);
    memcpy(uuid_out, head->uuid, sizeof head->uuid);
    err = KVP_PROTO;
    if (head->check == kvp_sum(head, offsetof(head_t, check)) && head->chunk_n <= KVP_NODE_CHUNKS_MAX &&
        head->size_bytes > 0 && head->chunk_bytes > 0 && kvp_node_mem_chunks(conf_out) == head->chunk_n &&
        book_bytes(head->chunk_n) == (uint64_t)st.st_size)
        return KVP_OK;
fail:
    kvp_memfile_leave(&book->mem);
    return err;
}

void
kvp_node_book_set_whole(kvp_node_book_t *book, bool is_whole)
{
    atomic_store(&head_of(book)->is_whole, is_whole);
}

bool
kvp_node_book_is_whole(const kvp_node_book_t *book)
{
    return book->mem.addr != NULL && atomic_load(&head_of(book)->is_whole) == 1;
}

static uint64_t
check_of(const copy_t *copy)
{
    uint64_t parts[3] = {copy->number, copy->len, kvp_sum(copy + 1, copy->len)};

    return kvp_sum(parts, sizeof parts);
}

bool
kvp_node_book_save(kvp_node_book_t *book, const void *bytes, size_t len)
{
    copy_t *copy;

    if (len > copy_bytes(head_of(book)->chunk_n) - sizeof *copy) return false;
    copy = copy_at(book, ++book->saves);
    memcpy(copy + 1, bytes, len);
    copy->len = len;
    copy->number = book->saves;
    copy->check = check_of(copy);
    return true;
}

static bool
is_good(const kvp_node_book_t *book, const copy_t *copy)
{
    return copy->number > 0 && copy->len <= copy_bytes(head_of(book)->chunk_n) - sizeof *copy &&
           copy->check == check_of(copy);
}

bool
kvp_node_book_load(kvp_node_book_t *book, const uint8_t **bytes_out, size_t *len_out)
{
    const copy_t *best = NULL;

    for (uint64_t i = 0; i < 2; i++) {
        const copy_t *copy = copy_at(book, i);

        if (is_good(book, copy) && (best == NULL || copy->number > best->number)) best = copy;
    }
    if (best == NULL) return false;
    book->saves = best->number;
    *bytes_out = (const uint8_t *)(best + 1);
    *len_out = best->len;
    return true;
}

void
kvp_node_book_save_owner(kvp_node_book_t *book, const kvp_node_mem_t *mem, uint32_t chunk)
{
    kvp_chunk_owner_t owner = {.check = 0};

    if (book->mem.addr == NULL) return;
    memcpy(owner.tenant, mem->chunks[chunk].tenant, sizeof mem->chunks[chunk].tenant);
    owner.check = kvp_sum(owner.tenant, sizeof owner.tenant);
    memcpy(owner_at(book, chunk), &owner, sizeof owner);
}

void
kvp_node_book_load_owners(const kvp_node_book_t *book, kvp_node_mem_t *mem)
{
    for (uint32_t i = 0; i < mem->chunk_n; i++) {
        const kvp_chunk_owner_t *owner = owner_at(book, i);

        if (owner->check != kvp_sum(owner->tenant, sizeof owner->tenant)) continue;
        memcpy(mem->chunks[i].tenant, owner->tenant, sizeof mem->chunks[i].tenant);
        mem->chunks[i].tenant[sizeof mem->chunks[i].tenant - 1] = '\0';
    }
}
