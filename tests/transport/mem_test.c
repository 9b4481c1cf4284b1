/* SPDX-License-Identifier: Apache-2.0
 * mem against the conformance suite.
 */
#include "tests/transport/suite.h"

int
main(void)
{
    return suite_run("mem");
}
