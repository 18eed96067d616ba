# SPDX-License-Identifier: LGPL-2.1-or-later
# shellcheck shell=bash
#
# Compiling and installing, inside the root and without a network. Build folders live in the cache, one for each
# checkout, root and set of options; the checkout is bound read-only. What was installed last is the folder `stage`,
# laid over the machine's root as a layer.

# Where the build of this checkout with the options in force lives.
build_dir() {
        local kind=plain
        [ -z "$SANITIZE" ] || kind=sanitize
        echo "$CACHE/build/$(printf '%s\n' "$CHECKOUT" "$ROOT" | hash_of)-$kind"
}

# in_root [NAMESPACE-FLAG]... [+BIND]... -- COMMAND…: runs it in the root, unbooted, with STAGE laid over it if that is
# set. Nothing that it writes outside its binds stays.
in_root() {
        local flags=() binds=() dir
        while [ "$1" != -- ]; do
                case $1 in
                        +*) binds+=("${1#+}") ;;
                        *) flags+=("$1") ;;
                esac
                shift
        done
        shift
        scratch_new dir
        run namespaced "${flags[@]}" -- chroot "$dir" "${STAGE:+$STAGE:}$ROOT" "$BUILD/work:/build" "$CHECKOUT:/src:ro" \
                "${binds[@]}" -- "$@"
}

# Compiles, installs into a fresh stage, and takes a copy (by hard links) of it for this call: STAGE.
build() {
        local options=(--prefix=/usr --sysconfdir=/etc --localstatedir=/var --buildtype=debugoptimized -Dwerror=true)
        local copy
        [ -z "$SANITIZE" ] || options+=(-Dsanitize=true)
        BUILD=$(build_dir)
        STAGE=
        mkdir -p "$BUILD/work"
        touch "$BUILD"
        if [ ! -e "$CHECKOUT/meson.build" ]; then
                say "there is no meson.build here: nothing to build"
                return 0
        fi
        lock "build-${BUILD##*/}"
        printf '%s\n' "$CHECKOUT" >"$BUILD/checkout"
        # shellcheck disable=SC2016 # expanded in the root
        in_root --net -- /bin/sh -c '
                set -e
                umask 022
                cd /build
                # A set-up that was interrupted leaves no build.ninja, and what it does leave is in the way.
                [ -e build.ninja ] || { find . -mindepth 1 -delete; meson setup /build /src "$@" >setup.log ||
                        { cat setup.log; exit 1; }; }
                ninja -C /build --quiet -j"$(nproc)"
                rm -rf stage.new
                meson install -C /build --no-rebuild --quiet --destdir /build/stage.new
                mkdir -p stage.new/usr
                # What a package does when it is installed: enable what asks for it.
                units=$(cd stage.new/usr/lib/systemd/system 2>/dev/null && grep -l "^\[Install\]" agent*) || units=
                [ -z "$units" ] || systemctl --quiet --root=/build/stage.new preset $units
        ' build "${options[@]}" >&2 || die "The build failed."
        remove_tree "$BUILD/stage"
        mv -T "$BUILD/work/stage.new" "$BUILD/stage"
        scratch_new copy
        cp -al "$BUILD/stage" "$copy/stage"
        STAGE=$copy/stage
        unlock
}
