/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See curl-internal.h. TLS of all connections of a glue: whom they trust, and the context that they have in common. */

#include <sys/stat.h>

#include "curl/curl-internal.h"

#define CA_PATH "/etc/ssl/certs"
/* Releases of libcurl, without their last number, that are known to give all contexts the same. */
#define SHARING_SINCE 0x080e
#define SHARING_UNTIL 0x080e

static _Thread_local CurlGlue *at_work; /* whose libcurl is running; that has helpers of its own for names */

CurlGlue *glue_enter(CurlGlue *g) {
        CurlGlue *before = at_work;

        at_work = g;
        return before;
}

void glue_leave(CurlGlue *before) {
        at_work = before;
}

static bool may_share(void) {
        static int known = -1;

        if (known < 0) {
                unsigned release = curl_version_info(CURLVERSION_NOW)->version_num >> 8;

                known = release >= SHARING_SINCE && release <= SHARING_UNTIL;
        }
        return known;
}

/* A context of OpenSSL 3 is 19 KB in two hundred pieces, more than its connection, and libcurl makes one for each
 * connection, all alike. This function stands before libssl's of the same name, so that those of one glue get the same
 * one. libcurl then tells it again what it knows already: for all our transfers the same protocol versions, options and
 * verification of the server, which no function of ours ever relaxes. What differs between connections (names, sessions)
 * libcurl has in SSL and in its own cache, which each glue has of its own. Of other releases than those that were looked
 * at each connection has its own context, as ever. */
__attribute__((visibility("default"))) SSL_CTX *SSL_CTX_new(const SSL_METHOD *method) {
        CurlGlue *g = at_work;

        if (!g || !may_share())
                return SSL_CTX_new_ex(NULL, NULL, method);
        if (g->tls && SSL_CTX_get_ssl_method(g->tls) != method) {
                SSL_CTX_free(g->tls);
                g->tls = NULL;
        }
        if (!g->tls)
                g->tls = SSL_CTX_new_ex(NULL, NULL, method);
        if (!g->tls)
                return NULL;

        /* libcurl is to find it as trusting as a new one; glue_set_up_tls() has the last word. */
        X509_STORE *store = X509_STORE_new();
        if (!store)
                return NULL;
        SSL_CTX_set_cert_store(g->tls, store);
        return SSL_CTX_up_ref(g->tls) == 1 ? g->tls : NULL;
}

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
