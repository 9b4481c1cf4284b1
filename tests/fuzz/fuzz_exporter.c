/* SPDX-License-Identifier: Apache-2.0
 * The reader of requests at the metrics port of a client: it stays within the request, and only GET and HEAD of
 * /metrics get the metrics. */
#include "client/api/exporter.h"
#include "tests/fuzz/fuzz_check.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (int is_loopback = 0; is_loopback <= 1; is_loopback++) {
        const char *why = NULL, *failure;
        char *text = malloc(size + 1);
        bool is_head = false;

        check(text != NULL);
        memcpy(text, data, size);
        text[size] = '\0';
        if (strstr(text, "\r\n\r\n") != NULL) { /* else the exporter waits for more */
            const bool is_wanted =
                strncmp(text, "GET /metrics HTTP/1.", 20) == 0 || strncmp(text, "HEAD /metrics HTTP/1.", 21) == 0;

            failure = kvp_exporter_judge(text, is_loopback == 1, &is_head, &why);
            check(failure != NULL || is_wanted);
            check(failure == NULL || (failure[0] == '4' && why != NULL));
        }
        free(text);
    }
    return 0;
}
