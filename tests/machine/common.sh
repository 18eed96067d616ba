# SPDX-License-Identifier: LGPL-2.1-or-later
# shellcheck shell=bash
#
# What the other helpers of ./dev stand on: messages, the cache folder, jobs that die with this call, and the
# cleaning up after calls that were interrupted.
#
# Everything that ./dev starts runs in mount and PID namespaces of its own (inside.sh), whose first process dies when
# its parent dies. So a call that is interrupted, even by SIGKILL, leaves no process and no mount on the host; what can
# be left are folders in the cache, and the next call removes those whose owner is gone.

CACHE=${AGENTD_CACHE:-/var/cache/agentd-dev}
JOBS=()      # pids of our background jobs
SCRATCH=()   # folders that live no longer than this call

say() {
        printf '==> %s\n' "$*" >&2
}

die() {
        printf 'dev: %s\n' "$*" >&2
        exit 1
}

# A pid alone is not an identity: say when the process started, too.
pid_identity() {
        local stat
        stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
        stat=${stat##*) }
        # shellcheck disable=SC2086
        set -- "$1" $stat
        # Field 3 of the file (the state) is $2 here, so field 22 (start time) is $21. A zombie is no owner.
        [ "$2" != Z ] || return 1
        echo "$1 ${21}"
}

# Is the process that was written to FILE by pid_identity still the same and alive?
identity_alive() {
        local pid rest now
        read -r pid rest 2>/dev/null <"$1" || return 1
        now=$(pid_identity "$pid") || return 1
        [ "$now" = "$pid $rest" ]
}

hash_of() {
        sha256sum | cut -c1-16
}

cache_init() {
        umask 022
        [[ $CACHE =~ ^/[A-Za-z0-9._/+@-]+$ ]] ||
                die "AGENTD_CACHE must be an absolute path of letters, digits and ._/+@- (it is '$CACHE')."
        mkdir -p "$CACHE"/{roots,images,npm,build,machines,calls,logs,locks} 2>/dev/null ||
                die "The cache folder $CACHE cannot be written; choose another with AGENTD_CACHE=FOLDER."
        chmod 0755 "$CACHE"
        # So that no backup and no indexer takes roots of throw-away machines for data of somebody's.
        [ -e "$CACHE/CACHEDIR.TAG" ] ||
                printf 'Signature: 8a477f597d28d172789f06886806bc55\n# Made by agentd/dev. May be deleted.\n' \
                        >"$CACHE/CACHEDIR.TAG"
        sweep
        trap on_exit EXIT
        trap 'exit 129' HUP
        trap 'exit 130' INT
        trap 'exit 143' TERM
}

# A folder of this call's own. The owner is in it before it gets its final name, so that sweep() never meets one
# without.
scratch_new() {
        local -n _ret=$1
        local new
        new=$(mktemp -d "$CACHE/calls/.new.XXXXXX")
        pid_identity $$ >"$new/owner"
        _ret=$CACHE/calls/$$.${new##*.}
        mv "$new" "$_ret"
        SCRATCH+=("$_ret")
}

remove_tree() {
        [ -e "$1" ] || return 0
        rm -rf --one-file-system "$1" 2>/dev/null && return 0
        # Machines lock files that must not change (chattr +i).
        chattr -R -f -i "$1" 2>/dev/null || true
        rm -rf --one-file-system "$1" || say "could not remove $1"
}

# Removes what earlier calls left that did not come to their end.
sweep() {
        local d
        # Only what has an owner file was made by us: nothing else that may lie in these folders is ours to remove.
        for d in "$CACHE"/calls/*; do
                [ -e "$d/owner" ] || continue
                identity_alive "$d/owner" || remove_tree "$d"
        done
        # Half-made names are in use for an instant only; an hour old, they are nobody's.
        find "$CACHE/calls" -maxdepth 1 -name '.new.*' -mmin +60 -exec rm -rf {} + 2>/dev/null || true
        for d in "$CACHE"/machines/*; do
                [ -e "$d/owner" ] || continue
                if [ -e "$d/stays" ]; then
                        identity_alive "$d/keeper" || identity_alive "$d/owner" || machine_destroy "$d"
                else
                        identity_alive "$d/owner" || machine_destroy "$d"
                fi
        done
        # Things made from recipes or checkouts that have not been used for two weeks. By ctime: a root that is just being
        # made has the mtime of Debian's own root directory.
        find "$CACHE"/{roots/root-*,images/*.tar,images/vm-*,npm/npm-*,build/*-{plain,sanitize,fuzz},logs/*} \
                -maxdepth 0 -ctime +14 -exec rm -rf --one-file-system {} + 2>/dev/null || true
}

on_exit() {
        local rc=$? pid d
        trap - EXIT
        trap '' HUP INT TERM
        for pid in "${JOBS[@]}"; do
                disown "$pid" 2>/dev/null || true # or bash reports the death
                kill -KILL "$pid" 2>/dev/null || true
        done
        for d in "${MACHINES[@]}"; do
                machine_destroy "$d"
        done
        for d in "${SCRATCH[@]}"; do
                remove_tree "$d"
        done
        exit "$rc"
}

# Runs a command so that a signal to ./dev is acted upon at once (bash handles traps during `wait`, not while a
# foreground child runs).
run() {
        local pid rc=0
        "$@" <&0 &
        pid=$!
        JOBS+=("$pid")
        wait "$pid" || rc=$?
        job_forget "$pid"
        return "$rc"
}

job_forget() {
        local pid left=()
        for pid in "${JOBS[@]}"; do
                [ "$pid" = "$1" ] || left+=("$pid")
        done
        JOBS=("${left[@]}")
}

# Takes the lock NAME, until unlock or the end of this shell (or of the subshell that it is called in) and its jobs.
lock() {
        exec {LOCK}>"$CACHE/locks/$1"
        flock -n "$LOCK" || {
                say "waiting for another call of ./dev ($1)"
                run flock "$LOCK"
        }
}

unlock() {
        exec {LOCK}>&-
}

# Runs inside.sh as the first process of its own namespaces. It is killed when we are, and takes everything in it
# along. Flags of unshare(1) first, then `--`, then the arguments of inside.sh.
namespaced() {
        local flags=()
        while [ "$1" != -- ]; do
                flags+=("$1")
                shift
        done
        shift
        exec setpriv --pdeathsig KILL \
                unshare --mount --pid --fork --kill-child=KILL --mount-proc --propagation slave "${flags[@]}" \
                /bin/bash "$CHECKOUT/tests/machine/inside.sh" "$@"
}
