/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <pwd.h>
#include <systemd/sd-daemon.h>
#include <time.h>

#include "basic/config.h"
#include "basic/fs-util.h"
#include "basic/log.h"
#include "basic/string-util.h"
#include "credentiald.h"

int credentiald_new(Credentiald **ret) {
        _cleanup_(credentiald_freep) Credentiald *c = NULL;
        int r;

        c = calloc(1, sizeof(*c));
        if (!c)
                return -ENOMEM;
        c->bridge_uid = (uid_t) -1;

        r = sd_event_default(&c->event);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(c);
        return 0;
}

Credentiald *credentiald_free(Credentiald *c) {
        if (!c)
                return NULL;

        credentiald_material_stop(c);
        credentiald_bus_stop(c);
        token_cache_free(c->tokens); /* cancels transfers, so before the glue */
        curl_glue_free(c->curl);
        address_guard_free(c->guard);
        live_cache_free(c->live);
        key_set_free(c->keys);
        credential_store_free(c->store);
        strv_free(c->allow_addresses);
        free(c->ca_file);
        sd_event_unref(c->event);
        return mfree(c);
}

/* The file is shared: what is for the bridge is not unknown. */
static int config_ignore(const char *value, void *field) {
        return 0;
}

static int load_config(Credentiald *c) {
        static const ConfigItem table[] = {
                { "Upstream", "AllowAddresses", config_parse_strv, offsetof(Credentiald, allow_addresses) },
                { "Upstream", "CAFile", config_parse_string, offsetof(Credentiald, ca_file) },
                { "Bridge", "ConnectionsMax", config_ignore, 0 },
                { "Bridge", "DrainSec", config_ignore, 0 },
                { "Bridge", "ApprovalTimeoutSec", config_ignore, 0 },
                { "Limits", "RunRequestsPerSecond", config_ignore, 0 },
                { "Limits", "RunRequestsBurst", config_ignore, 0 },
                { "Limits", "RunCallsMax", config_ignore, 0 },
                { "Limits", "UserCallsPerSecond", config_ignore, 0 },
                { "Limits", "UserCallsBurst", config_ignore, 0 },
                { "Limits", "UserCallsMax", config_ignore, 0 },
                { "Limits", "BodyMax", config_ignore, 0 },
                {},
        };
        int r;

        r = config_load("bridge.conf", table, c);
        if (r < 0)
                return log_error_errno(r, "Failed to load bridge.conf: %m");
        if (c->ca_file && access(c->ca_file, R_OK) < 0)
                log_warning_errno(-errno, "bridge.conf: CAFile=%s cannot be read, no token will be fetched (only /etc "
                                          "and /usr are seen here): %m", c->ca_file);

        r = address_guard_new(c->allow_addresses, &c->guard);
        if (r < 0)
                return log_error_errno(r, "AllowAddresses= in bridge.conf has a malformed address: %m");

        return 0;
}

/* Straight into locked memory: no buffer in between. */
static int load_sealing_key(Secret **ret) {
        const char *dir = getenv("CREDENTIALS_DIRECTORY");
        _cleanup_(secret_freep) Secret *key = NULL;
        _cleanup_close_ int fd = -EBADF;
        _cleanup_free_ char *path = NULL;
        char more;
        ssize_t n;
        int r;

        if (!dir)
                return log_error_errno(-ENOKEY, "$CREDENTIALS_DIRECTORY is not set: the unit must load %s.",
                                       SEALING_KEY_CREDENTIAL);
        path = strprintf("%s/%s", dir, SEALING_KEY_CREDENTIAL);
        if (!path)
                return log_oom();

        r = secret_new(SEAL_KEY_SIZE, &key);
        if (r < 0)
                return log_error_errno(r, "Failed to get locked memory: %m");

        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
        if (fd < 0)
                return log_error_errno(-errno, "Failed to open the sealing key: %m");
        n = read(fd, secret_buffer(key), SEAL_KEY_SIZE);
        if (n < 0)
                return log_error_errno(-errno, "Failed to read the sealing key: %m");
        if (n != (ssize_t) SEAL_KEY_SIZE || read(fd, &more, 1) != 0)
                return log_error_errno(-EKEYREJECTED, "The sealing key must have exactly %u bytes.", SEAL_KEY_SIZE);

        *ret = TAKE_PTR(key);
        return 0;
}

static int open_store(Credentiald *c) {
        _cleanup_(secret_freep) Secret *key = NULL;
        const char *dir = getenv("STATE_DIRECTORY") ?: CREDENTIAL_DIRECTORY;
        int r;

        r = load_sealing_key(&key);
        if (r < 0)
                return r;

        r = credential_store_open(dir, key, &c->store);
        if (r < 0)
                return log_error_errno(r, "Failed to open %s: %m", dir);
        TAKE_PTR(key);
        return 0;
}

/* Exactly one socket; others that we do not know are closed. */
static int take_socket(int *ret) {
        int n = sd_listen_fds(true), fd = -EBADF;

        if (n < 0)
                return log_error_errno(n, "Failed to look for passed sockets: %m");

        for (int i = SD_LISTEN_FDS_START; i < SD_LISTEN_FDS_START + n; i++) {
                if (fd < 0 && sd_is_socket_unix(i, SOCK_SEQPACKET, 1, NULL, 0) > 0)
                        fd = i;
                else {
                        log_warning("Closing a passed file descriptor that is not known.");
                        safe_close(i);
                }
        }
        if (fd < 0)
                return log_error_errno(-ENOTCONN, "No listening socket was passed: start agent-credentiald.socket.");

        *ret = fd;
        return 0;
}

int credentiald_startup(Credentiald *c) {
        TokenFetcher fetcher;
        struct passwd *pw;
        int fd, r;

        r = load_config(c);
        if (r < 0)
                return r;

        errno = 0;
        pw = getpwnam(BRIDGE_USER);
        if (!pw)
                return log_error_errno(-(errno ?: ENOENT), "User %s does not exist: %m", BRIDGE_USER);
        c->bridge_uid = pw->pw_uid;

        r = open_store(c);
        if (r < 0)
                return r;

        r = key_set_load(KEYS_DIRECTORY, &c->keys);
        if (r < 0)
                return log_error_errno(r, "Failed to load the keys of run tokens: %m");
        r = live_cache_new(LIVE_DIRECTORY, &c->live);
        if (r < 0)
                return log_oom();

        r = curl_glue_new(c->event, &(CurlGlueOptions) { .guard = c->guard, .ca_file = c->ca_file }, &c->curl);
        if (r < 0)
                return log_error_errno(r, "Failed to set up libcurl: %m");
        c->fetch_context = (TokenFetchContext) {
                .store = c->store,
                .curl = c->curl,
        };
        fetcher = token_fetch_fetcher(&c->fetch_context);
        r = token_cache_new(&fetcher, &c->tokens);
        if (r < 0)
                return log_oom();

        r = take_socket(&fd);
        if (r < 0)
                return r;
        r = credentiald_material_startup(c, fd);
        if (r < 0)
                return r;

        return credentiald_bus_startup(c);
}

static uint64_t now_sec(void) {
        struct timespec ts;

        clock_gettime(CLOCK_REALTIME, &ts);
        return (uint64_t) ts.tv_sec;
}

int credentiald_authorize(Credentiald *c, const char *run, const char *service, const char *token, LiveRun **ret_live,
                          Service **ret_service) {
        _cleanup_(live_run_unrefp) LiveRun *live = NULL;
        _cleanup_run_claims_ RunClaims claims = {};
        Service *s;
        int r;

        r = run_token_verify(c->keys, token, strlen(token), now_sec(), &claims);
        if (r == -ENOMEM)
                return r;
        if (r < 0) {
                log_info_errno(r, "A run token was refused: %m");
                return -EACCES;
        }
        if (!streq(claims.run, run)) {
                log_notice("The token of run %s was used for another one.", claims.run);
                return -EACCES;
        }

        r = live_cache_get(c->live, run, &live);
        if (r == -ENOMEM)
                return r;
        if (r < 0) {
                log_full_errno(r == -ENOENT ? LOG_INFO : LOG_ERR, r, "Run %s is not alive: %m", run);
                return -EACCES;
        }

        /* The token of an earlier attempt is as dead as that attempt. */
        if (!streq(claims.jti, live->jti) || !streq(claims.user, live->user) || !streq(claims.agent, live->agent) ||
            !streq(strempty(claims.session), strempty(live->session))) {
                log_notice("Run %s used a token that is not of its present attempt.", run);
                return -EACCES;
        }

        s = live_run_find_service(live, service);
        if (!s)
                return -ENXIO;

        *ret_service = service_ref(s);
        *ret_live = TAKE_PTR(live);
        return 0;
}

bool credentiald_is_alive(Credentiald *c, const LiveRun *live) {
        _cleanup_(live_run_unrefp) LiveRun *now = NULL;

        return live_cache_get(c->live, live->run, &now) >= 0 && streq(now->jti, live->jti);
}
