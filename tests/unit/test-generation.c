/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Proves that a generation has one spelling and one digest, that all others are refused, and that a stored one is
 * checked. */
#include <fcntl.h>
#include <sys/stat.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "image/generation.h"

#define D8(c) c c c c c c c c
#define D(c) "sha256:" D8(c) D8(c) D8(c) D8(c) D8(c) D8(c) D8(c) D8(c)
#define HEAD "{\"arch\":\"x86_64\",\"base\":\"" D("a") "\","

static void test_encode(void) {
        static const char text[] = "{\"arch\":\"x86_64\",\"base\":\"" D("a") "\",\"env\":[\"" D("b") "\",\"" D("c")
                "\"],\"parent\":null,\"runner\":\"" D("d") "\",\"v\":1}";
        char *env[] = { (char *) D("b"), (char *) D("c"), NULL };
        char digest[DIGEST_LEN + 1], expected[DIGEST_LEN + 1], a[DIGEST_LEN + 1], b[DIGEST_LEN + 1];
        _cleanup_(generation_freep) Generation *g = NULL, *h = NULL, *child = NULL;
        _cleanup_strv_free_ char **layers = NULL;
        _cleanup_free_ char *encoded = NULL, *error = NULL;

        assert(generation_new("x86_64", D("a"), env, D("d"), NULL, &g) >= 0);
        assert(generation_encode(g, &encoded, digest) >= 0);
        assert(streq(encoded, text));
        assert(digest_bytes(text, strlen(text), expected) >= 0);
        assert(streq(digest, expected));

        assert(generation_decode(text, strlen(text), &h, &error) >= 0);
        assert(streq(h->base, D("a")) && strv_length(h->env) == 2 && streq(h->env[1], D("c")));
        assert(streq(h->runner, D("d")) && !h->parent);

        assert(generation_layers(g, &layers) >= 0);
        assert(strv_length(layers) == 3 && streq(layers[0], D("a")) && streq(layers[2], D("c")));

        /* What a run sees does not depend on runner and history, but on every layer and their order. */
        assert(generation_derive(g, digest, NULL, D("e"), &child) >= 0);
        assert(streq(child->parent, digest) && streq(child->runner, D("e")));
        assert(generation_environment_digest(g, a) >= 0 && generation_environment_digest(child, b) >= 0);
        assert(streq(a, b));
        child = generation_free(child);
        assert(generation_derive(g, digest, D("f"), NULL, &child) >= 0);
        assert(strv_length(child->env) == 3 && streq(child->runner, D("d")));
        assert(generation_environment_digest(child, b) >= 0);
        assert(!streq(a, b));
}

static void test_refuse(void) {
        static const char *const bad[] = {
                "",
                "{}",
                "[]",
                /* blanks */
                "{\"arch\":\"x86_64\", \"base\":\"" D("a") "\",\"env\":[],\"parent\":null,\"runner\":null,\"v\":1}",
                /* order */
                "{\"base\":\"" D("a") "\",\"arch\":\"x86_64\",\"env\":[],\"parent\":null,\"runner\":null,\"v\":1}",
                /* unknown member */
                HEAD "\"env\":[],\"note\":\"\",\"parent\":null,\"runner\":null,\"v\":1}",
                /* missing member */
                "{\"arch\":\"x86_64\",\"base\":\"" D("a") "\",\"env\":[],\"parent\":null,\"v\":1}",
                /* version */
                "{\"arch\":\"x86_64\",\"base\":\"" D("a") "\",\"env\":[],\"parent\":null,\"runner\":null,\"v\":2}",
                "{\"arch\":\"x86_64\",\"base\":\"" D("a") "\",\"env\":[],\"parent\":null,\"runner\":null,\"v\":1.0}",
                /* digests */
                "{\"arch\":\"x86_64\",\"base\":\"" D("A") "\",\"env\":[],\"parent\":null,\"runner\":null,\"v\":1}",
                "{\"arch\":\"x86_64\",\"base\":\"sha256:../../x\",\"env\":[],\"parent\":null,\"runner\":null,\"v\":1}",
                "{\"arch\":\"x86_64\",\"base\":\"" D("a") "\",\"env\":[\"x\"],\"parent\":null,\"runner\":null,\"v\":1}",
                "{\"arch\":\"x86_64\",\"base\":\"" D("a") "\",\"env\":null,\"parent\":null,\"runner\":null,\"v\":1}",
                "{\"arch\":\"x86_64\",\"base\":\"" D("a") "\",\"env\":[],\"parent\":7,\"runner\":null,\"v\":1}",
                /* another spelling of the same string */
                "{\"arch\":\"x86\\u005f64\",\"base\":\"" D("a") "\","
                "\"env\":[],\"parent\":null,\"runner\":null,\"v\":1}",
                "{\"arch\":\"../x\",\"base\":\"" D("a") "\",\"env\":[],\"parent\":null,\"runner\":null,\"v\":1}",
                /* trailing */
                "{\"arch\":\"x86_64\",\"base\":\"" D("a") "\",\"env\":[],\"parent\":null,\"runner\":null,\"v\":1}\n",
        };
        static const char good[] = HEAD "\"env\":[],\"parent\":null,\"runner\":null,\"v\":1}";
        _cleanup_(generation_freep) Generation *g = NULL;

        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                _cleanup_free_ char *error = NULL;

                assert(generation_decode(bad[i], strlen(bad[i]), &g, &error) == -EINVAL);
                assert(!g && error);
        }
        assert(generation_decode(good, strlen(good), &g, NULL) >= 0);
        g = generation_free(g);
        assert(generation_new(NULL, "sha256:1", NULL, NULL, NULL, &g) == -EINVAL);
        assert(generation_new(NULL, D("1"), NULL, NULL, NULL, &g) >= 0);
        assert(!isempty(g->arch));
}

static void test_store(void) {
        char dir[] = "/tmp/test-generation-XXXXXX", digest[DIGEST_LEN + 1], again[DIGEST_LEN + 1];
        _cleanup_(generation_freep) Generation *g = NULL, *h = NULL;
        _cleanup_(layer_store_freep) LayerStore *s = NULL;
        _cleanup_free_ char *path = NULL;
        char **l = NULL;
        int fd;

        assert(mkdtemp(dir));
        assert(layer_store_open(dir, &s) >= 0);
        assert(generation_list(s, &l) >= 0 && strv_length(l) == 0);
        l = strv_free(l);
        assert(generation_new("x86_64", D("a"), NULL, NULL, NULL, &g) >= 0);
        assert(generation_save(s, g, digest) >= 0);
        assert(generation_save(s, g, again) >= 0);
        assert(streq(digest, again));
        assert(generation_list(s, &l) >= 0 && strv_length(l) == 1 && streq(l[0], digest));
        l = strv_free(l);
        assert(generation_load(s, digest, &h) >= 0);
        assert(streq(h->base, D("a")));
        h = generation_free(h);
        assert(generation_load(s, D("0"), &h) == -ENOENT);
        assert(generation_load(s, "sha256:../x", &h) == -EINVAL);

        path = strprintf("%s/generations/sha256-%s.json", dir, digest + 7);
        assert(chmod(path, 0600) >= 0);
        fd = open(path, O_WRONLY | O_CLOEXEC);
        assert(fd >= 0 && pwrite(fd, " ", 1, 10) == 1);
        close(fd);
        assert(generation_load(s, digest, &h) == -EBADMSG);
        assert(generation_remove(s, digest) >= 0);
        assert(generation_remove(s, digest) >= 0);
        assert(generation_load(s, digest, &h) == -ENOENT);
        assert(rm_rf_at(AT_FDCWD, dir) >= 0);
}

/* Changes that are the same as those of an earlier freeze: overlayfs would refuse their layer the second time. */
static void test_derive_again(void) {
        static const char a[] = "sha256:1111111111111111111111111111111111111111111111111111111111111111",
                          b[] = "sha256:2222222222222222222222222222222222222222222222222222222222222222",
                          base[] = "sha256:3333333333333333333333333333333333333333333333333333333333333333";
        _cleanup_(generation_freep) Generation *first = NULL, *same = NULL, *other = NULL;

        assert(generation_new(NULL, base, (char *const[]) { (char *) a, (char *) b, NULL }, NULL, NULL, &first) == 0);
        assert(generation_derive(first, base, b, NULL, &same) == 0);
        assert(strv_length(same->env) == 2 && streq(same->env[0], a) && streq(same->env[1], b));
        assert(generation_derive(first, base, a, NULL, &other) == 0);
        assert(strv_length(other->env) == 2 && streq(other->env[0], b) && streq(other->env[1], a));
}

int main(void) {
        test_encode();
        test_refuse();
        test_store();
        test_derive_again();
        return 0;
}
