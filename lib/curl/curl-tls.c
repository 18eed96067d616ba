/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See curl-internal.h. TLS of all connections of a glue: whom they trust. */

#include <sys/stat.h>

#include "curl/curl-internal.h"

#define CA_PATH "/etc/ssl/certs"

static struct timespec mtime_of(const char *path) {
        struct stat st;

        return path && stat(path, &st) >= 0 ? st.st_mtim : (struct timespec) {};
}

static bool same_time(struct timespec a, struct timespec b) {
        return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/* libcurl would parse the system's whole bundle for each connection, and keep it as long. The folder has each authority
 * in a file of its own, found by a hash of its name. Read anew when the administrator has changed something. */
static X509_STORE *glue_trust(CurlGlue *g) {
        struct timespec file = mtime_of(g->ca_file), path = mtime_of(CA_PATH);

        if (g->trust && same_time(file, g->ca_file_mtime) && same_time(path, g->ca_path_mtime))
                return g->trust;

        X509_STORE *store = X509_STORE_new();
        if (!store)
                return NULL;
        /* As libcurl has it: the first path that ends in what is trusted counts. */
        if (X509_STORE_set_flags(store, X509_V_FLAG_TRUSTED_FIRST | X509_V_FLAG_PARTIAL_CHAIN) != 1 ||
            X509_STORE_load_path(store, CA_PATH) != 1 ||
            (g->ca_file && X509_STORE_load_file(store, g->ca_file) != 1)) {
                X509_STORE_free(store);
                return NULL;
        }
        X509_STORE_free(g->trust);
        g->trust = store;
        g->ca_file_mtime = file;
        g->ca_path_mtime = path;
        return store;
}

CURLcode glue_set_up_tls(CURL *easy, void *context, void *userdata) {
        X509_STORE *store = glue_trust(userdata);

        if (!store)
                return CURLE_SSL_CACERT_BADFILE;
        SSL_CTX_set1_cert_store(context, store);
        /* Connections that wait between two events keep no buffers: 34 KiB each, which thousands of streams would feel.
         */
        SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
        return CURLE_OK;
}
