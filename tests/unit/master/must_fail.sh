#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# must_fail.sh PROGRAM: succeeds if the tests of the program fail, some of them and by themselves: a crash is none. What they
# print is not wanted, for it looks like failures.
"$1" >/dev/null 2>&1
rc=$?
[ "$rc" -gt 0 ] && [ "$rc" -lt 100 ] && exit 0
echo "the program ended with $rc: nothing was found" >&2
exit 1
