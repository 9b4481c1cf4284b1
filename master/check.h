/* SPDX-License-Identifier: Apache-2.0
 * `kvpool-master --check`: what a start would make of the log, told without a start.
 */
#ifndef KVP_MASTER_CHECK_H
#define KVP_MASTER_CHECK_H

#include "common/base.h"

/* kvp_check_run reads the log in that directory (NULL = the default) as a start does, and writes to standard output what it found: text, or
 * one line of JSON. Nothing is changed, but where it is_repairing: then what no start would read is set aside. Returns an exit code: 0
 * nothing is wrong, 1 something is, 2 it could not be checked or repaired (logged). */
int kvp_check_run(const char *data_dir, bool is_repairing, bool is_json);

#endif
