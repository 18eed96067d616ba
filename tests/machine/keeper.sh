#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# keeper.sh MACHINE-FOLDER CHECKOUT INSIDE-ARGUMENTS…
#
# Becomes the process that a machine lives and dies with: moves itself to a cgroup of its own (noting which, so that it
# can be removed), then turns into unshare(1), which boots the machine by inside.sh and is what ./dev kills.
set -eu

d=$1 checkout=$2
shift 2
name=agentd-dev-${d##*/}
command=(unshare --mount --pid --fork --kill-child=KILL --mount-proc --propagation slave
        /bin/bash "$checkout/tests/machine/inside.sh" boot "$@")

if [ -d /run/systemd/system ] && command -v systemd-run >/dev/null; then
        # The host's systemd owns the cgroup tree: ask it for a part of it. The scope goes when its last process goes.
        exec systemd-run --quiet --scope --collect --unit="$name-$$" --property=Delegate=yes "${command[@]}"
fi

: >"$d/cgroup"
# All of it at once: it changes while we move.
mapfile -t groups </proc/self/cgroup
for group in "${groups[@]}"; do
        IFS=: read -r _ controllers path <<<"$group"
        case $controllers in
                '') type=cgroup2 pattern=. ;;
                name=systemd) type=cgroup pattern=name=systemd ;;
                *) continue ;;
        esac
        mount=$(awk -v t="$type" -v o="$pattern" '$3 == t && $4 ~ o { print $2; exit }' /proc/self/mounts)
        [ -n "$mount" ] || continue
        own=$mount${path%/}
        mkdir "$own/$name" 2>/dev/null || continue
        echo "$own/$name" >>"$d/cgroup"
        # Controllers can be handed down only from a group without processes, or from the very root; absent ones are
        # absent in the machine, too.
        if [ "$type" = cgroup2 ]; then
                for c in $(<"$own/cgroup.controllers"); do
                        { echo "+$c" >"$own/cgroup.subtree_control"; } 2>/dev/null || true
                done
        fi
        echo $$ >"$own/$name/cgroup.procs"
done

exec "${command[@]}"
