/* SPDX-License-Identifier: Apache-2.0
 * See paths.h. */
#include "conductor/proxy/paths.h"

#include <string.h>
#include <strings.h>

/* Returns true if the path segment is "." or "..", also in escaped form. A server or its reverse proxy could leave
 * the directory of models by such a segment. */
static bool
is_dots(const char *segment, size_t len)
{
    size_t at = 0, dots = 0;

    while (at < len) {
        if (segment[at] == '.')
            at++;
        else if (len - at >= 3 && strncasecmp(segment + at, "%2e", 3) == 0)
            at += 3;
        else
            return false;
        dots++;
    }
    return dots == 1 || dots == 2;
}

/* Returns true if the text is a legal id of a model, which may contain slashes. */
static bool
is_model(const char *id)
{
    if (id[0] == '\0') return false;
    for (const char *c = id; *c != '\0'; c++)
        if (*c <= ' ' || *c > '~') return false;
    for (;;) {
        const size_t len = strcspn(id, "/");

        if (is_dots(id, len)) return false;
        if (id[len] == '\0') return true;
        id += len + 1;
    }
}

uint32_t
kvp_path_find(const char *method, const char *url, kvp_path_kind_t *kind_out)
{
    static const struct {
        const char *method, *path;
        kvp_path_kind_t kind;
    } paths[] = {{"POST", "/v1/completions", KVP_PATH_COMPLETION},
                 {"POST", "/v1/chat/completions", KVP_PATH_COMPLETION},
                 {"GET", "/v1/models", KVP_PATH_MODELS},
                 {"GET", "/v1/models/", KVP_PATH_MODELS},
                 {"POST", "/v1/responses", KVP_PATH_RESPONSE},
                 {"POST", "/v1/embeddings", KVP_PATH_OTHER},
                 {"POST", "/v1/rerank", KVP_PATH_OTHER},
                 {"POST", "/v1/score", KVP_PATH_OTHER},
                 {"POST", "/tokenize", KVP_PATH_OTHER},
                 {"POST", "/detokenize", KVP_PATH_OTHER},
                 {"GET", "/health", KVP_PATH_HEALTH},
                 {"GET", "/healthcheck", KVP_PATH_HEALTHCHECK},
                 {"GET", "/metrics", KVP_PATH_METRICS}};

    if (strlen(url) > KVP_PATH_MAX) return 404;
    for (size_t i = 0; i < KVP_ARRAY_LEN(paths); i++) {
        const size_t len = strlen(paths[i].path);
        const bool has_id = paths[i].path[len - 1] == '/';

        if (has_id ? strncmp(url, paths[i].path, len) != 0 || !is_model(url + len) : strcmp(url, paths[i].path) != 0)
            continue;
        *kind_out = paths[i].kind;
        return strcmp(method, paths[i].method) == 0 ? 200 : 405;
    }
    return 404;
}
