/* SPDX-License-Identifier: Apache-2.0
 * Programs that do what they are told, a command a line of standard input: its name, then words, with blanks between.
 * One thread. */
#ifndef KVP_E2E_WORDS_H
#define KVP_E2E_WORDS_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *name;
    void (*run)(void); /* prints the answer */
} e2e_command_t;

/* e2e_obey runs commands until the input ends. One that is not among the n, or has too many words, ends the program. */
void e2e_obey(const e2e_command_t *commands, size_t n);

/* e2e_word is a word of the command that runs, "" where it has none there; 0 is its name. Good until the next command.
 */
const char *e2e_word(size_t i);
uint64_t e2e_number(size_t i);

/* e2e_named is VALUE of name=VALUE among the words, or NULL. */
const char *e2e_named(const char *name);
uint64_t e2e_named_number(const char *name, uint64_t fallback);

#endif
