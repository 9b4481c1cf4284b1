/* SPDX-License-Identifier: Apache-2.0
 * put_get.c - puts four blocks into a pool, asks which of five keys exist, and reads the four blocks back. Each of
 * the three steps is one batch.
 *
 *   cc put_get.c -o put_get $(pkg-config --cflags --libs kvpool)
 *   ./put_get 127.0.0.1:50051        # the address of the master; $KVPOOL_MASTER if there is none */
#include <kvpool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 4
#define BLOCK_BYTES ((size_t)256 << 10)

/* check_call ends the program if a call failed as a whole. */
static void
check_call(const char *call, int err)
{
    if (err == KVPOOL_OK) return;
    fprintf(stderr, "%s: %s\n", call, kvpool_strerror(err));
    exit(1);
}

/* check_items ends the program if one item of a batch failed. */
static void
check_items(const char *call, const int *results)
{
    for (int i = 0; i < BLOCKS; i++)
        check_call(call, results[i]);
}

int
main(int argc, char **argv)
{
    char why[256];
    kvpool_conf_t conf = {
        .struct_size = sizeof conf,
        .master = argc > 1 ? argv[1] : NULL,
        .detail = why,
        .detail_cap = sizeof why,
    };
    kvpool_t *pool;
    int err = kvpool_open(&conf, &pool);

    if (err != KVPOOL_OK) {
        fprintf(stderr, "kvpool_open: %s: %s\n", kvpool_strerror(err), why);
        return 1;
    }

    /* Batches move bytes from and to registered memory, without a copy in between. */
    uint8_t *source = malloc(BLOCKS * BLOCK_BYTES), *target = malloc(BLOCKS * BLOCK_BYTES);
    if (source == NULL || target == NULL) return 1;
    check_call("kvpool_register", kvpool_register(pool, source, BLOCKS * BLOCK_BYTES));
    check_call("kvpool_register", kvpool_register(pool, target, BLOCKS * BLOCK_BYTES));

    static char names[BLOCKS + 1][32];
    kvpool_key_t keys[BLOCKS + 1];
    kvpool_iov_t from[BLOCKS], to[BLOCKS];
    kvpool_item_t puts[BLOCKS], gets[BLOCKS];
    int results[BLOCKS + 1];

    for (int i = 0; i <= BLOCKS; i++) {
        snprintf(names[i], sizeof names[i], "example/put_get/%d", i);
        keys[i] = (kvpool_key_t){.data = names[i], .len = strlen(names[i])};
    }
    for (int i = 0; i < BLOCKS; i++) {
        memset(source + i * BLOCK_BYTES, 'a' + i, BLOCK_BYTES);
        from[i] = (kvpool_iov_t){.addr = source + i * BLOCK_BYTES, .len = BLOCK_BYTES};
        to[i] = (kvpool_iov_t){.addr = target + i * BLOCK_BYTES, .len = BLOCK_BYTES};
        puts[i] = (kvpool_item_t){.key = keys[i], .iov = &from[i], .iov_n = 1};
        gets[i] = (kvpool_item_t){.key = keys[i], .iov = &to[i], .iov_n = 1};
    }

    check_call("kvpool_batch_put", kvpool_batch_put(pool, puts, BLOCKS, NULL, results));
    check_items("put", results);

    /* The last key was never put. */
    check_call("kvpool_batch_is_exist", kvpool_batch_is_exist(pool, keys, BLOCKS + 1, NULL, results));
    for (int i = 0; i <= BLOCKS; i++)
        printf("%s: %s\n", names[i], results[i] == 1 ? "exists" : "does not exist");

    check_call("kvpool_batch_get", kvpool_batch_get(pool, gets, BLOCKS, NULL, results));
    check_items("get", results);
    for (int i = 0; i < BLOCKS; i++)
        printf("%s: %zu bytes\n", names[i], gets[i].len);
    printf("the bytes are %s\n", memcmp(source, target, BLOCKS * BLOCK_BYTES) == 0 ? "equal" : "DIFFERENT");

    check_call("kvpool_batch_remove", kvpool_batch_remove(pool, keys, BLOCKS, NULL, results));
    kvpool_free(pool); /* closes the handle first; from here on the memory is the program's alone */
    free(source);
    free(target);
    return 0;
}
