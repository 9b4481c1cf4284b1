/* SPDX-License-Identifier: Apache-2.0
 * The line that is being obeyed, in words. */
#include "tests/e2e/e2e_words.h"

#include "tests/e2e/e2e_util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS_MAX 16

static char *words[WORDS_MAX];
static size_t words_n;

const char *
e2e_word(size_t i)
{
    return i < words_n ? words[i] : "";
}

uint64_t
e2e_number(size_t i)
{
    return strtoull(e2e_word(i), NULL, 10);
}

const char *
e2e_named(const char *name)
{
    const size_t len = strlen(name);

    for (size_t i = 1; i < words_n; i++)
        if (strncmp(words[i], name, len) == 0 && words[i][len] == '=') return words[i] + len + 1;
    return NULL;
}

uint64_t
e2e_named_number(const char *name, uint64_t fallback)
{
    const char *value = e2e_named(name);

    return value == NULL ? fallback : strtoull(value, NULL, 10);
}

static void
obey_line(const e2e_command_t *commands, size_t n, char *line)
{
    words_n = 0;
    for (char *at = strtok(line, " \n"); at != NULL; at = strtok(NULL, " \n")) {
        if (words_n == WORDS_MAX) e2e_die("too many words");
        words[words_n++] = at;
    }
    for (size_t i = 0; i < n; i++) {
        if (strcmp(commands[i].name, e2e_word(0)) != 0) continue;
        commands[i].run();
        fflush(stdout);
        return;
    }
    e2e_die("unknown command %s", e2e_word(0));
}

void
e2e_obey(const e2e_command_t *commands, size_t n)
{
    static char line[16384];

    while (fgets(line, sizeof line, stdin) != NULL)
        obey_line(commands, n, line);
}
