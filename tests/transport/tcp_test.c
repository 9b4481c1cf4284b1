/* SPDX-License-Identifier: Apache-2.0
 * tcp against the conformance suite.
 */
#include "tests/transport/suite.h"

/* ThreadSanitizer notes what sendmsg reads only when the call is over; by then the peer may have received it and the
 * owner, rightly, may write the memory again. */
KVP_API const char *__tsan_default_options(void);

const char *
__tsan_default_options(void)
{
    return "intercept_send=0";
}

int
main(void)
{
    return suite_run("tcp");
}
