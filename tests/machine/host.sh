# SPDX-License-Identifier: LGPL-2.1-or-later
# shellcheck shell=bash
#
# What ./dev needs of the host: root, apt, a mirror, some packages, and what its kernel lets us do.

# shellcheck disable=SC2034 # the recipes'
SUITE=trixie

# Becomes root if it can; the caller's own settings survive that.
become_root() {
        [ "$(id -u)" = 0 ] && return 0
        command -v sudo >/dev/null || die "This needs root, and there is no sudo here: run it as root."
        local keep=() v
        for v in ${!AGENTD_*} CI TERM http_proxy https_proxy no_proxy; do
                [ -z "${!v+x}" ] || keep+=("$v=${!v}")
        done
        exec sudo -- env "${keep[@]}" /bin/bash "$CHECKOUT/dev" "$@"
}

# Installs the host packages that are missing: host_needs PROGRAM=PACKAGE…, where PROGRAM may also be a file.
host_needs() {
        local want missing=()
        for want; do
                case $want in
                        /*) [ -e "${want%%=*}" ] || missing+=("${want#*=}") ;;
                        *) command -v "${want%%=*}" >/dev/null || missing+=("${want#*=}") ;;
                esac
        done
        [ ${#missing[@]} -gt 0 ] || return 0
        command -v apt-get >/dev/null ||
                die "This host has no apt-get, so ${missing[*]} cannot be installed: use a Debian or Ubuntu host."
        say "installing on this host: ${missing[*]}"
        host_apt install -y --no-install-recommends "${missing[@]}" || {
                host_apt update && host_apt install -y --no-install-recommends "${missing[@]}"
        } || {
                tail -n 5 "$CACHE/logs/apt.log" >&2
                die "apt-get could not install ${missing[*]}: is there a network? (log: $CACHE/logs/apt.log)"
        }
}

host_apt() {
        run env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" \
                >>"$CACHE/logs/apt.log" 2>&1 </dev/null
}

# The mirror with Debian's main, from this host's own apt configuration, in whichever format that is written. Prints
# nothing when there is none (Ubuntu, say).
# shellcheck disable=SC2016 # expanded by apt-get
host_mirror() {
        local uri codename component origin label
        # A .sources or .list line alone does not say whose archive it is: the archive's own Release file does.
        while IFS='|' read -r uri codename component origin label; do
                [ "$origin/$label/$component" = Debian/Debian/main ] || continue
                case $codename in
                        *-updates | *-security | *-backports*) continue ;;
                esac
                echo "${uri%/}"
                return 0
        done < <(apt-get indextargets --format '$(REPO_URI)|$(CODENAME)|$(COMPONENT)|$(ORIGIN)|$(LABEL)' \
                'Created-By: Packages' 2>/dev/null)
        return 1
}

find_mirror() {
        MIRROR=${AGENTD_MIRROR:-}
        [ -z "$MIRROR" ] || return 0
        command -v apt-get >/dev/null ||
                die "This host has no apt, so no Debian root can be made: use a Debian or Ubuntu host."
        MIRROR=$(host_mirror) && return 0
        say "reading the package lists of this host's mirrors"
        host_apt update || true
        MIRROR=$(host_mirror) ||
                die "This host's apt configuration names no Debian mirror that answers; give one in AGENTD_MIRROR=URL."
}

# Options for mmdebstrap that give its apt the host's way to the network.
apt_options() {
        apt-config dump Acquire 2>/dev/null | grep -E '^Acquire::(https?|ftp)::(Proxy|CA|Verify)' |
                sed 's/^/--aptopt=/' || true
}

# Says why no booted container is to be had here; says nothing (and succeeds) if one is.
nspawn_obstacle() {
        local why=
        if ! unshare --mount --pid --fork --mount-proc true 2>/dev/null; then
                why="this host does not let root make namespaces (CAP_SYS_ADMIN is missing)"
        elif ! namespaces_probe; then
                why="this host does not let root mount an overlay on a tmpfs"
        elif ! command -v systemd-nspawn >/dev/null; then
                why="systemd-nspawn is not installed"
        elif ! grep -qw cgroup2 /proc/filesystems; then
                why="this kernel has no cgroup2"
        elif [ ! -d /sys/fs/cgroup ] || ! grep -q ' cgroup2 ' /proc/self/mounts; then
                why="no cgroup2 is mounted on this host"
        fi
        [ -n "$why" ] || return 0
        echo "$why"
        return 1
}

# shellcheck disable=SC2016 # expanded by the inner shell
namespaces_probe() {
        unshare --mount --propagation private /bin/sh -c '
                mount -t tmpfs tmpfs "$1" && mkdir "$1/l" "$1/u" "$1/w" "$1/m" &&
                mount -t overlay overlay -o "lowerdir=$1/l,upperdir=$1/u,workdir=$1/w" "$1/m"
        ' sh "$CACHE/calls" 2>/dev/null
}
