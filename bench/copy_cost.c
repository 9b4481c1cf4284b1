/* SPDX-License-Identifier: Apache-2.0
 * kvpool-copy-cost: the cost of the checksum in the copy of a put into shared memory. Copies 512
 * MiB in pieces of 2 MiB with the library's own functions, plain and summing in turns, so that both
 * meet the same machine. Prints the median of the added time as a share of the summing copy. */
#include "transport/copy.h"

#include "common/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SET_BYTES (512ull << 20) /* more than any cache holds */
#define PIECE_BYTES (2ull << 20)
#define TURNS 15

static void *
map(int fd, int flags)
{
    void *at = mmap(NULL, SET_BYTES, PROT_READ | PROT_WRITE, flags | MAP_POPULATE, fd, 0);
    if (at == MAP_FAILED) {
        perror("kvpool-copy-cost: mmap");
        exit(1);
    }
    return at;
}

static uint64_t
copy_set(uint8_t *dst, const uint8_t *src, bool with_sum)
{
    const uint64_t begun = kvp_now_ns();
    for (size_t at = 0; at < SET_BYTES; at += PIECE_BYTES) {
        if (with_sum) {
            kvp_copy_sum_t sum;
            kvp_copy_sum_begin(&sum, PIECE_BYTES);
            kvp_copy_sum(&sum, dst + at, src + at, PIECE_BYTES, NULL);
            kvp_copy_fence();
            if (kvp_copy_sum_end(&sum) == 0) abort();
        } else {
            kvp_copy(dst + at, src + at, PIECE_BYTES);
        }
    }
    return kvp_now_ns() - begun;
}

static int
compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int
main(void)
{
    const int fd = memfd_create("kvpool-copy-cost", MFD_CLOEXEC);
    double share[TURNS], with_gb[TURNS];
    if (fd < 0 || ftruncate(fd, SET_BYTES) != 0) {
        perror("kvpool-copy-cost: memfd");
        return 1;
    }
    uint8_t *src = map(-1, MAP_PRIVATE | MAP_ANONYMOUS), *dst = map(fd, MAP_SHARED);
    memset(src, 0x5a, SET_BYTES);
    copy_set(dst, src, true);
    for (int i = 0; i < TURNS; i++) {
        const uint64_t plain = copy_set(dst, src, false), with = copy_set(dst, src, true);
        share[i] = 1 - (double)plain / (double)with;
        with_gb[i] = (double)SET_BYTES / (double)with;
    }
    qsort(share, TURNS, sizeof(*share), compare);
    qsort(with_gb, TURNS, sizeof(*with_gb), compare);
    printf("{\"sum_share\":%.4f,\"copy_gb_per_s\":%.3f,\"turns\":%d}\n", share[TURNS / 2], with_gb[TURNS / 2], TURNS);
    return 0;
}
