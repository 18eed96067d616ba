# SPDX-License-Identifier: LGPL-2.1-or-later
# shellcheck shell=bash
#
# Throw-away machines: Debian 13 booted by systemd-nspawn from an overlay whose upper layer is memory. A machine is a
# folder in the cache:
#
#   owner    pid of the ./dev call that made it (a machine without `stays` goes when its owner goes)
#   stays    exists when the machine is to stay up between calls (./dev up)
#   keeper   pid of the process whose death ends everything in the machine
#   init     pid of the machine's PID 1, as the host sees it
#   state/   its /var/lib/agentd, on the cache's own file system (an EROFS file is mounted from no overlay)
#   out/     its /mnt/out, for what is to be kept: test results, journal
#   stage/, layer/, console.log, cgroup

MACHINES=()

# Name of the machine that stays up for this checkout.
machine_up_name() {
        echo "agentd-$(printf '%s' "$CHECKOUT" | hash_of | cut -c1-8)"
}

# machine_new NAME RET_DIR
machine_new() {
        local -n _dir=$2
        local new
        new=$(mktemp -d "$CACHE/calls/.new.XXXXXX")
        chmod 0755 "$new"
        pid_identity $$ >"$new/owner"
        mkdir -m 0700 "$new/state"
        mkdir "$new/out" "$new/layer"
        _dir=$CACHE/machines/$1
        remove_tree "$_dir"
        mv -T "$new" "$_dir"
}

# machine_boot NAME RET_DIR [stay]: boots and waits until the machine says that it is running.
machine_boot() {
        local name=$1 why d started=$SECONDS
        why=$(nspawn_obstacle) || die "No machine can be booted: $why."
        machine_new "$name" d
        [ "${3:-}" = stay ] || MACHINES+=("$d")
        machine_fill "$d"

        local lower=$ROOT binds=("$d/state:/var/lib/agentd" "$d/out:/mnt/out" "$CHECKOUT:/src:ro") args p
        if [ -n "${STAGE:-}" ]; then
                cp -al "$STAGE" "$d/stage"
                lower=$d/stage:$ROOT
        fi
        machine_material_binds
        # Landlock by its calls: an older nspawn has no name for the group.
        args=(--machine="$name" --boot --capability=all
                --system-call-filter='@keyring bpf landlock_create_ruleset landlock_restrict_self')
        [ "${AGENTD_MACHINE_NET:-private}" = host ] || args+=(--private-network)
        for p in /dev/loop-control /dev/fuse; do
                [ ! -e "$p" ] || args+=(--bind="$p")
        done

        if [ "${3:-}" = stay ]; then
                : >"$d/stays"
                setsid "$BASH" "$CHECKOUT/tests/machine/keeper.sh" "$d" "$CHECKOUT" "$d" "$lower" "${binds[@]}" -- \
                        "${args[@]}" </dev/null >"$d/console.log" 2>&1 &
        else
                setpriv --pdeathsig KILL "$BASH" "$CHECKOUT/tests/machine/keeper.sh" "$d" "$CHECKOUT" "$d" "$lower" \
                        "${binds[@]}" -- "${args[@]}" </dev/null >"$d/console.log" 2>&1 &
        fi
        local keeper=$!
        disown "$keeper"
        pid_identity "$keeper" >"$d/keeper" || true
        machine_wait "$d" "$keeper" || {
                tail -n 20 "$d/console.log" >&2
                cp "$d/console.log" "$CACHE/logs/boot-failed.log"
                machine_destroy "$d"
                die "The machine did not boot (console: $CACHE/logs/boot-failed.log)."
        }
        say "machine $name is up after $((SECONDS - started)) s"
        # shellcheck disable=SC2034 # a name reference
        local -n _ret=$2
        _ret=$d
}

# Files that the machine gets on top of its root: DIR/layer.
machine_fill() {
        local l=$1/layer
        mkdir -p "$l/etc"
        if [ "${AGENTD_MACHINE_NET:-private}" = host ]; then
                cp -L /etc/resolv.conf "$l/etc/resolv.conf" 2>/dev/null || true
                if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
                        mkdir -p "$l/etc/ssl/certs"
                        cp -L /etc/ssl/certs/ca-certificates.crt "$l/etc/ssl/certs/"
                fi
        fi
        [ -z "$SANITIZE" ] || sanitize_layer "$l"
}

# Binds (into the caller's array `binds`) what was made for tests and demo, as far as it is there.
machine_material_binds() {
        local p
        p=$(recipe_path test_image)
        [ ! -e "$p" ] || binds+=("$p:/var/cache/agentd-test/rootfs.tar:ro")
        p=$(recipe_path demo_image)
        [ ! -e "$p" ] || binds+=("$p:/var/cache/agentd-demo/rootfs.tar:ro")
        p=$(recipe_path npm)
        [ ! -e "$p/node_modules" ] || binds+=("$p/node_modules:/var/cache/agentd-demo/node_modules:ro"
                "$p/node_modules:/var/cache/agentd-test/node_modules:ro")
}

# The machine's PID 1: the process two PID namespaces down (inside.sh is in the first) that is number 1 there.
machine_find_init() {
        local pid=$1 child nspid own
        # shellcheck disable=SC2207
        own=($(sed -n 's/^NSpid:\s*//p' /proc/self/status))
        # shellcheck disable=SC2013
        for child in $(cat "/proc/$pid/task/$pid/children" 2>/dev/null); do
                nspid=$(sed -n 's/^NSpid:\s*//p' "/proc/$child/status" 2>/dev/null) || continue
                # shellcheck disable=SC2086
                set -- $nspid
                if [ $# -eq $((${#own[@]} + 2)) ] && [ "${!#}" = 1 ]; then
                        echo "$child"
                        return 0
                fi
                machine_find_init "$child" && return 0
        done
        return 1
}

machine_wait() {
        local d=$1 keeper=$2 init='' state='' deadline=$((SECONDS + 900))
        while [ $SECONDS -lt $deadline ]; do
                kill -0 "$keeper" 2>/dev/null || return 1
                [ -n "$init" ] || init=$(machine_find_init "$keeper") || { run sleep 0.05; continue; }
                state=$(nsenter -t "$init" -a timeout 300 systemctl is-system-running --wait 2>/dev/null) || true
                case $state in
                        running | degraded | maintenance) break ;;
                esac
                run sleep 0.05
        done
        case $state in
                running) ;;
                degraded)
                        say "the machine is up, but units failed in it:"
                        nsenter -t "$init" -a systemctl --failed --no-legend --plain --no-pager >&2 || true
                        ;;
                *) return 1 ;;
        esac
        pid_identity "$init" >"$d/init"
}

# Runs a command in the machine, with a plain environment and in a cgroup of the machine's own tree. ENTER_ENV holds
# further variables.
machine_enter() {
        local init
        read -r init _ <"$1/init"
        shift
        # shellcheck disable=SC2016 # expanded inside
        nsenter -t "$init" -a /usr/bin/env --default-signal=INT,QUIT -i \
                PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin HOME=/root USER=root LOGNAME=root \
                SHELL=/bin/bash LANG=C.UTF-8 TERM="${TERM:-dumb}" PYTHONDONTWRITEBYTECODE=1 "${ENTER_ENV[@]}" \
                /bin/bash -c '
                        cd /root
                        mkdir -p /sys/fs/cgroup/agentd-dev 2>/dev/null
                        echo $$ 2>/dev/null >/sys/fs/cgroup/agentd-dev/cgroup.procs
                        exec "$@"
                ' dev "$@"
}

# Keeps the machine's journal and console where they survive it; prints the folder.
machine_keep_logs() {
        local to
        to=$CACHE/logs/$(date +%Y%m%d-%H%M%S)-${1##*/}
        mkdir -p "$to"
        cp "$1/console.log" "$to/" 2>/dev/null || true
        machine_enter "$1" journalctl --no-pager -o short-precise >"$to/journal.txt" 2>/dev/null || true
        machine_enter "$1" systemctl list-units --all --no-pager >"$to/units.txt" 2>/dev/null || true
        cp -r "$1/out" "$to/" 2>/dev/null || true
        echo "$to"
}

# Ends a machine and removes its folder. Nothing in it is worth a shutdown.
machine_destroy() {
        local pid init path
        if identity_alive "$1/keeper"; then
                read -r pid _ <"$1/keeper"
                init=$(machine_find_init "$pid") || init=
                kill -KILL "$pid" 2>/dev/null || true
                # The machine's PID 1 is the last to go; then its files and cgroups are free.
                [ -z "$init" ] || timeout 300 tail --pid="$init" --sleep-interval=0.05 -f /dev/null 2>/dev/null || true
        fi
        if [ -e "$1/cgroup" ]; then
                while read -r path; do
                        cgroup_remove "$path"
                done <"$1/cgroup"
        fi
        remove_tree "$1"
}

cgroup_remove() {
        local i
        [[ $1 == /sys/fs/cgroup/*agentd-dev-* ]] || return 0
        for ((i = 0; i < 50; i++)); do
                [ -d "$1" ] || return 0
                find "$1" -depth -type d -exec rmdir {} + 2>/dev/null && return 0
                sleep 0.1
        done
}
