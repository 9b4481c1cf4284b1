/* SPDX-License-Identifier: Apache-2.0
 * For a person at a terminal: a question before what cannot be undone, and the progress of what takes long. */
#ifndef KVP_TOOLS_BASE_TTY_H
#define KVP_TOOLS_BASE_TTY_H

#include "common/base.h"

/* kvp_cli_can_ask returns whether standard input and standard error are a terminal. kvp_cli_confirm prints the question
 * there, and returns whether the answer is "yes". */
bool kvp_cli_can_ask(void);
bool kvp_cli_confirm(const char *fmt, ...) KVP_PRINTF(1, 2);

/* A line of progress on standard error. A zeroed struct has no line on the screen. */
typedef struct {
    uint64_t began_ns, shown_ns;
} kvp_progress_t;

/* kvp_progress_show replaces the line a few times a second, if standard error is a terminal: "45 %, 450 of 1000 WHAT,
 * 12 s left". all 0: the total is not known. kvp_progress_end removes the line until the next show; call it before
 * other output. */
void kvp_progress_show(kvp_progress_t *progress, const char *what, uint64_t done, uint64_t all);
void kvp_progress_end(kvp_progress_t *progress);

#endif
