/* SPDX-License-Identifier: Apache-2.0
 * `kvpool-master --check`: reports what a start would read from the log, without starting. */
#ifndef KVP_MASTER_CHECK_H
#define KVP_MASTER_CHECK_H

#include "common/base.h"

/* kvp_check_run reads the log in the directory (NULL = the default) as a start does, and writes its findings to
 * standard output: text, or one line of JSON. It changes nothing, except with is_repairing: then it moves the part that
 * no start would read to another file. Returns an exit code: 0 no fault, 1 a fault, 2 an error (logged). */
int kvp_check_run(const char *data_dir, bool is_repairing, bool is_json);

#endif
