#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# inside.sh MODE DIR LOWER [BIND]... -- COMMAND...
#
# The first process in mount and PID namespaces that ./dev made for it: lays an overlay (LOWER under a tmpfs) at
# DIR/root, binds SRC:DST[:ro] into it, and then
#
#   MODE=chroot   runs COMMAND in it, without booting anything;
#   MODE=boot     boots it by systemd-nspawn; COMMAND are further arguments for nspawn; DIR/layer, if there is one, is
#                 copied over the root first;
#   MODE=plain    runs COMMAND on the host's own root (LOWER is not used); for mmdebstrap, whose mounts then die with it.
#
# All mounts are private to these namespaces, so none can outlive them.
set -euo pipefail

mode=$1 dir=$2 lower=$3
shift 3
binds=()
while [ "$1" != -- ]; do
        binds+=("$1")
        shift
done
shift

# Background jobs of a shell start with SIGINT ignored, and would pass that on.
defaults=(env --default-signal=INT --default-signal=QUIT)

if [ "$mode" = plain ]; then
        "${defaults[@]}" "$@"
        exit
fi

root=$dir/root
mkdir -p "$dir/tmp" "$root"
mount -t tmpfs -o size=90%,mode=0755 agentd-dev "$dir/tmp"
mkdir "$dir/tmp/upper" "$dir/tmp/work"
mount -t overlay -o "lowerdir=$lower,upperdir=$dir/tmp/upper,workdir=$dir/tmp/work" agentd-dev "$root"

for b in "${binds[@]}"; do
        option=
        case $b in
                *:ro) option=ro b=${b%:ro} ;;
        esac
        src=${b%:*} dst=$root${b##*:}
        if [ -d "$src" ]; then
                mkdir -p "$dst"
        else
                mkdir -p "${dst%/*}"
                [ -e "$dst" ] || : >"$dst"
        fi
        mount --bind "$src" "$dst"
        [ -z "$option" ] || mount -o remount,bind,ro "$dst"
done

case $mode in
        chroot)
                mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
                mount --rbind /sys "$root/sys"
                mount --rbind /dev "$root/dev"
                mount -t tmpfs -o mode=0755,nosuid,nodev tmpfs "$root/run"
                # An overlay takes neither whiteouts nor another overlay's upper layer; tests make both.
                mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
                mount -t tmpfs -o mode=1777 tmpfs "$root/var/tmp"
                ip link set lo up 2>/dev/null || true
                rc=0
                "${defaults[@]}" -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin HOME=/root USER=root \
                        LANG=C.UTF-8 TERM="${TERM:-dumb}" PYTHONDONTWRITEBYTECODE=1 \
                        chroot "$root" "$@" || rc=$?
                exit "$rc"
                ;;
        boot)
                [ ! -d "$dir/layer" ] || cp -a "$dir/layer/." "$root/"
                # nspawn keeps notes about its machines in /run; let them be ours alone.
                mount -t tmpfs -o mode=0755 tmpfs /run
                export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1
                # Not exec: as PID 1 of the namespace nspawn would ignore signals that it does not handle.
                systemd-nspawn --quiet --directory="$root" --register=no --keep-unit --link-journal=no \
                        --resolv-conf=off --timezone=off "$@"
                ;;
esac
