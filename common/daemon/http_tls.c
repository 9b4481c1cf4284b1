/* SPDX-License-Identifier: Apache-2.0 */
#include "common/daemon/http_tls.h"

#include "common/log.h"
#include "common/trust/tls.h"

#include <errno.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PEM_MAX_BYTES (64u << 10)

/* Returns the text of a file, which the caller frees; NULL: it cannot be read or is empty; logged. */
static char *
read_pem(const char *path)
{
    FILE *file = fopen(path, "re");
    char *text = file == NULL ? NULL : calloc(1, PEM_MAX_BYTES + 1);
    const size_t n = text == NULL ? 0 : fread(text, 1, PEM_MAX_BYTES, file);
    const char *why = text == NULL || ferror(file) ? strerror(errno) : "the file is empty";

    if (file != NULL) fclose(file);
    if (n > 0) return text;
    kvp_log_error("http", "--http-tls: cannot read %s: %s", path, why);
    free(text);
    return NULL;
}

kvp_err_t
kvp_http_tls_load(kvp_http_tls_t *tls, kvp_authrole_t role)
{
    char why[KVP_TLS_WHY_MAX] = "";
    kvp_tls_server_t *checked = NULL;
    kvp_creds_t files;

    if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES) {
        kvp_log_error("http",
                      "--http-tls: this program's libmicrohttpd %s has no TLS. Programs that are built with the "
                      "distribution's library have it; else use a proxy with TLS before the port",
                      MHD_get_version());
        return KVP_INVALID;
    }
    if (!kvp_creds_tls(&files) || files.tls_cert == NULL) {
        kvp_log_error("http", "--http-tls needs a certificate: --tls-ca, --tls-cert and --tls-key (kvpool cert)");
        return KVP_INVALID;
    }
    const kvp_err_t err = kvp_tls_server_create(&files, role, &checked, why);
    kvp_tls_server_destroy(checked);
    if (err != KVP_OK) {
        kvp_log_error("http", "--http-tls: %s", why);
        return err;
    }
    tls->cert = read_pem(files.tls_cert);
    if (tls->cert != NULL) tls->key = read_pem(files.tls_key);
    return tls->key != NULL ? KVP_OK : KVP_INVALID;
}

void
kvp_http_tls_free(kvp_http_tls_t *tls)
{
    if (tls->key != NULL) explicit_bzero(tls->key, strlen(tls->key));
    free(tls->cert);
    free(tls->key);
    *tls = (kvp_http_tls_t){.cert = NULL};
}
