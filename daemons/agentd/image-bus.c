/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The Manager's methods about images: imported or built by operations (operation.h), listed, their names removed. */
#include "basic/name-util.h"
#include "basic/string-util.h"
#include "bus-util.h"
#include "operation.h"

#define PACKAGES_MAX 1000U

typedef struct OwnImages {
        const char *user;
        int n;
} OwnImages;

/* The list has root's, too. */
static int count_own(const StoreImage *image, void *userdata) {
        OwnImages *own = userdata;

        own->n += streq(image->user, own->user);
        return 0;
}

/* Name of a new image of the sender's own. >0 go on. */
static int check_new_image(Manager *m, sd_bus_message *msg, const char *name, uid_t *ret_uid, char **ret_user,
                           sd_bus_error *e) {
        _cleanup_(store_image_freep) StoreImage *image = NULL;
        _cleanup_free_ char *user = NULL;
        OwnImages own = {};
        uid_t uid;
        int r;

        r = bus_sender_user(msg, &uid, &user);
        if (r < 0)
                return r;
        own.user = user;
        r = bus_verify_async(m->polkit, msg, POLKIT_ACTION_MANAGE, NULL, uid, e);
        if (r <= 0)
                return r;
        if (!object_name_is_valid(name))
                return sd_bus_error_set(
                        e, BUS_ERROR_INVALID_NAME,
                        "Not a valid name. Names are 1 to 63 of a-z 0-9 . _ - and begin with a letter or "
                        "digit.");
        r = store_image_find(m->store, user, name, &image);
        if (r >= 0 && streq(image->user, user))
                return sd_bus_error_setf(e, BUS_ERROR_IMAGE_EXISTS,
                                         "%s has an image \"%s\" already. Choose another name, or remove it first.",
                                         user, name);
        if (r < 0 && r != -ENOENT)
                return bus_store_error(m, e, r);
        r = store_image_list(m->store, user, count_own, &own);
        r = bus_check_number(m, e, uid, r < 0 ? r : own.n, BUS_IMAGES_MAX, "images");
        if (r < 0)
                return r;
        *ret_uid = uid;
        *ret_user = TAKE_PTR(user);
        return 1;
}

int method_import_image(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_free_ char *user = NULL;
        Manager *m = userdata;
        const char *name;
        uid_t uid;
        int fd, r;

        r = sd_bus_message_read(msg, "sh", &name, &fd);
        if (r < 0)
                return r;
        r = check_new_image(m, msg, name, &uid, &user, e);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = bus_read_options(msg, (const BusOption[]) { {} }, NULL, e);
        if (r < 0)
                return r;
        return operation_start_and_reply(
                m, msg,
                &(OperationRequest) { .kind = OPERATION_IMPORT_IMAGE,
                                      .subject = name,
                                      .user = user,
                                      .uid = uid,
                                      .input_fd = fd,
                                      .sandbox_uid = (uid_t) -1 },
                e);
}

/* As Debian's policy has it. In particular no leading "-", which would be an option. */
static bool package_name_is_valid(const char *s) {
        size_t n = strlen(s);

        if (n < 2 || n > 100 || !((s[0] >= 'a' && s[0] <= 'z') || (s[0] >= '0' && s[0] <= '9')))
                return false;
        return strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789+-.") == n;
}

typedef struct BuildOptions {
        char **packages;
        const char *mirror;
} BuildOptions;

static void build_options_done(BuildOptions *o) {
        strv_free(o->packages);
}

int method_build_image(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        static const BusOption options[] = {
                { "packages", "an array of not too many strings", bus_option_strings,
                  offsetof(BuildOptions, packages) },
                { "mirror", "a string", bus_option_string, offsetof(BuildOptions, mirror) },
                {}
        };
        _cleanup_(build_options_done) BuildOptions o = {};
        _cleanup_free_ char *user = NULL;
        Manager *m = userdata;
        const char *name;
        uid_t uid;
        int r;

        r = sd_bus_message_read(msg, "s", &name);
        if (r < 0)
                return r;
        r = check_new_image(m, msg, name, &uid, &user, e);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = bus_read_options(msg, options, &o, e);
        if (r < 0)
                return r;
        if (strv_length(o.packages) > PACKAGES_MAX)
                return sd_bus_error_setf(e, BUS_ERROR_INVALID_OPTION, "At most %u packages can be named.",
                                         PACKAGES_MAX);
        for (char **p = o.packages; p && *p; p++)
                if (!package_name_is_valid(*p))
                        return sd_bus_error_setf(e, BUS_ERROR_INVALID_OPTION, "\"%.100s\" is no name of a package.",
                                                 *p);
        /* The mirror is reached from the host's network: only the administrator says which. */
        if (o.mirror && uid != 0)
                return sd_bus_error_set(e, BUS_ERROR_INVALID_OPTION,
                                        "Only root can choose the mirror; others use Mirror= of agentd.conf.");
        if (o.mirror &&
            (string_has_cc(o.mirror) || strchr(o.mirror, ' ') ||
             !(startswith(o.mirror, "http://") || startswith(o.mirror, "https://") || startswith(o.mirror, "file:///"))))
                return sd_bus_error_set(e, BUS_ERROR_INVALID_OPTION,
                                        "Option mirror must be a URL of http, https or file.");
        return operation_start_and_reply(
                m, msg,
                &(OperationRequest) { .kind = OPERATION_BUILD_IMAGE,
                                      .subject = name,
                                      .user = user,
                                      .uid = uid,
                                      .input_fd = -EBADF,
                                      .packages = o.packages,
                                      .mirror = o.mirror ?: m->settings->image_mirror,
                                      .sandbox_uid = (uid_t) -1 },
                e);
}

static int append_image(const StoreImage *i, void *userdata) {
        return sd_bus_message_append(userdata, "(sstts)", i->name, i->digest, i->size, i->created_usec, i->user);
}

int method_list_images(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        _cleanup_free_ char *user = NULL;
        Manager *m = userdata;
        uid_t uid;
        int r;

        r = bus_sender_user(msg, &uid, &user);
        if (r < 0)
                return r;
        r = bus_list_open(msg, "(sstts)", &reply);
        if (r < 0)
                return r;
        r = store_image_list(m->store, uid == 0 ? NULL : user, append_image, reply);
        if (r < 0)
                return bus_store_error(m, e, r);
        return bus_list_send(reply);
}

/* The layer stays: generations name it. Only the name goes. */
int method_remove_image(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_free_ char *user = NULL, *name = NULL;
        Manager *m = userdata;
        const char *ref;
        int r;

        r = sd_bus_message_read(msg, "s", &ref);
        if (r < 0)
                return r;
        r = bus_resolve_owned(m, msg, ref, POLKIT_ACTION_MANAGE, e, &user, NULL, &name);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = store_image_remove(m->store, user, name);
        if (r == -ENOENT)
                return sd_bus_error_setf(e, BUS_ERROR_NO_SUCH_IMAGE, "%s has no image \"%s\".", user, name);
        return r < 0 ? bus_store_error(m, e, r) : sd_bus_reply_method_return(msg, NULL);
}
