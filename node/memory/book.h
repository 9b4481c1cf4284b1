/* SPDX-License-Identifier: Apache-2.0
 * The book: the state for the next process of a node, in a file of shared memory that only the node and its keeper
 * have. However the node ends, the file keeps its last stores. PROTOCOL "Keeper". Control thread only. */
#ifndef KVP_NODE_MEMORY_BOOK_H
#define KVP_NODE_MEMORY_BOOK_H

#include "node/memory/segment.h"

#include "common/buf.h"

#define KVP_BOOK_MAGIC 0x31304b4f4f42564bull /* the bytes "KVBOOK01" */
#define KVP_BOOK_VERSION 1u
#define KVP_BOOK_CHUNK_BYTES 4u /* bytes of the core's state for each chunk */
/* room for the rest of the core's state: some thousand ranges of fenced incarnations */
#define KVP_BOOK_REST_BYTES (96u << 10)

/* A book. The zero value with mem.fd -1 is no book. */
typedef struct {
    kvp_mem_t mem;
    uint64_t saves;
} kvp_node_book_t;

/* kvp_node_book_make creates a book for mem, marked as not whole. Error: SYS. kvp_node_book_close closes the file,
 * which other processes may still have; legal on an empty value. */
kvp_err_t kvp_node_book_make(kvp_node_book_t *book, const kvp_node_mem_t *mem) KVP_MUST_USE;
void kvp_node_book_close(kvp_node_book_t *book);

/* kvp_node_book_open opens a book that the keeper held, and owns fd in every case. Returns the description of the
 * book's memory. Errors: PROTO, VERSION. */
kvp_err_t kvp_node_book_open(kvp_node_book_t *book, int fd, kvp_node_mem_conf_t *conf_out, uint8_t uuid_out[16])
    KVP_MUST_USE;

/* kvp_node_book_set_whole marks the book as whole or not. Whole means that the keeper has all files, and the pidfd of
 * every process that may store to them. The mark takes effect at once, even without a running keeper. */
void kvp_node_book_set_whole(kvp_node_book_t *book, bool is_whole);
bool kvp_node_book_is_whole(const kvp_node_book_t *book);

/* kvp_node_book_save replaces the core's state in the book: at any moment either the old or the new state is valid.
 * False: the state is too long. kvp_node_book_load returns the state, borrowed until the next save; false: there is
 * none. */
bool kvp_node_book_save(kvp_node_book_t *book, const void *bytes, size_t len);
bool kvp_node_book_load(kvp_node_book_t *book, const uint8_t **bytes_out, size_t *len_out) KVP_MUST_USE;

/* kvp_node_book_save_owner saves the tenant of a chunk, as set by kvp_node_mem_set_owner. kvp_node_book_load_owners
 * reads the tenants of all chunks into mem; an entry with a wrong checksum counts as no tenant. */
void kvp_node_book_save_owner(kvp_node_book_t *book, const kvp_node_mem_t *mem, uint32_t chunk);
void kvp_node_book_load_owners(const kvp_node_book_t *book, kvp_node_mem_t *mem);

#endif
