/* SPDX-License-Identifier: Apache-2.0
 * A main for fuzz targets that are not linked with libFuzzer: runs the files given, and those in the directories given,
 * through the target: each whole, then cut short at up to 64 places, since lengths that promise more than there is are
 * what parsers get wrong, then as many times with some bytes changed, the same in every run. Every input lies in memory
 * of exactly its size, so that AddressSanitizer sees one byte too far. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define INPUT_MAX (1u << 20)
#define CUTS_MAX 64u
#define CHANGED 64u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak));

static size_t inputs;

static void
run_one(const uint8_t *data, size_t size)
{
    uint8_t *exact = malloc(size > 0 ? size : 1);
    if (exact == NULL) abort();
    if (size > 0) memcpy(exact, data, size);
    (void)LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

static void
run_changed(uint8_t *data, size_t size)
{
    static uint64_t seed = 1;
    uint8_t *copy = malloc(size);

    if (copy == NULL) abort();
    for (unsigned i = 0; i < CHANGED; i++) {
        memcpy(copy, data, size);
        for (unsigned n = 0; n <= i % 8; n++) {
            seed = seed * 6364136223846793005ull + 1442695040888963407ull;
            copy[(seed >> 33) % size] = (uint8_t)(seed >> 25);
        }
        run_one(copy, size);
    }
    free(copy);
}

static int
run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        perror(path);
        return 1;
    }
    uint8_t *data = malloc(INPUT_MAX);
    if (data == NULL) abort();
    size_t size = fread(data, 1, INPUT_MAX, f);
    int bad = ferror(f);
    fclose(f);
    if (!bad) {
        size_t step = size / CUTS_MAX + 1;
        run_one(data, size);
        for (size_t cut = 0; cut < size; cut += step)
            run_one(data, cut);
        if (size > 0) run_changed(data, size);
        inputs++;
    }
    free(data);
    return bad;
}

static int
run_path(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        perror(path);
        return 1;
    }
    if (!S_ISDIR(st.st_mode)) return run_file(path);

    struct dirent **names = NULL;
    int n = scandir(path, &names, NULL, alphasort);
    int bad = n < 0;
    for (int i = 0; i < n; i++) {
        char sub[4096];
        int len = snprintf(sub, sizeof(sub), "%s/%s", path, names[i]->d_name);
        if (names[i]->d_name[0] != '.' && len > 0 && (size_t)len < sizeof(sub)) bad |= run_path(sub);
        free(names[i]);
    }
    free(names);
    return bad;
}

int
main(int argc, char **argv)
{
    int bad = 0;
    if (LLVMFuzzerInitialize != NULL) (void)LLVMFuzzerInitialize(&argc, &argv);
    run_one((const uint8_t *)"", 0);
    for (int i = 1; i < argc; i++)
        bad |= run_path(argv[i]);
    printf("%zu inputs\n", inputs);
    if (!bad && inputs == 0) {
        printf("the corpus is empty\n");
        return 1;
    }
    return bad ? 1 : 0;
}
