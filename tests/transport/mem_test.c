/* SPDX-License-Identifier: Apache-2.0
 * mem against the conformance suite.
 */
#include "tests/transport/mem.h"
#include "tests/transport/suite.h"

int
main(void)
{
    suite_ops = mem_transport();
    return suite_run("mem");
}
