# SPDX-License-Identifier: LGPL-2.1-or-later
# shellcheck shell=bash
#
# The suite `vm`: the same root under a kernel of its own, in qemu, for what a container does not have (all cgroup
# controllers, LSMs, BPF programs on sockets). The root is an EROFS image, made once; a second one, the payload, has
# what was installed from this checkout, the checkout, and the unit that runs the tests. An initramfs script lays both
# and a tmpfs over each other, so the root is an overlay as in the containers. Results come back on a raw disk as a
# tar; without that sign nothing has passed.

VM_SECONDS=7200 # for the whole run, boot included

# Runs in the root, with /out for the results.
# shellcheck disable=SC2016 # expanded by the shell in the root
VM_HOOK='
        set -e
        export DEBIAN_FRONTEND=noninteractive
        mkdir -p /etc/initramfs-tools/scripts/init-bottom /usr/share/initramfs-tools/modules.d
        printf "%s\n" virtio_pci virtio_blk overlay erofs ext4 >/usr/share/initramfs-tools/modules.d/agentd-dev
        cat >/etc/initramfs-tools/scripts/init-bottom/agentd-dev <<-"END"
		#!/bin/sh
		[ "$1" != prereqs ] || exit 0
		set -e
		d=/run/agentd-dev
		mkdir -p $d
		mount -t tmpfs -o size=90% tmpfs $d
		mkdir $d/base $d/payload $d/upper $d/work
		mount -o move "$rootmnt" $d/base
		mount -t erofs -o ro /dev/vdb $d/payload
		mount -t overlay -o lowerdir=$d/payload:$d/base,upperdir=$d/upper,workdir=$d/work overlay "$rootmnt"
		END
        chmod +x /etc/initramfs-tools/scripts/init-bottom/agentd-dev
        apt-get -q update
        apt-get -q install -y --no-install-recommends "$@"
        apt-get clean
        rm -rf /var/lib/apt/lists/*
        cp -L /vmlinuz /out/vmlinuz
        cp -L /initrd.img /out/initrd
        mount --bind / /mnt
        mkfs.erofs --quiet /out/root.erofs /mnt
'

make_vm_image() {
        local dir binds=("$1:/out") v options
        mkdir -p "$1"
        scratch_new dir
        cp -L /etc/resolv.conf "$dir/resolv.conf"
        binds+=("$dir/resolv.conf:/etc/resolv.conf:ro")
        v=/etc/ssl/certs/ca-certificates.crt
        [ ! -e "$v" ] || binds+=("$v:$v:ro")
        # The host's proxies, in the form of a configuration file.
        mapfile -t options < <(apt_options)
        printf '%s\n' "${options[@]#--aptopt=}" >"$dir/proxy"
        binds+=("$dir/proxy:/etc/apt/apt.conf.d/00agentd-dev:ro")
        namespaced -- chroot "$dir" "$ROOT" "${binds[@]}" -- /bin/bash -c "$VM_HOOK" vm "${VM_PACKAGES[@]}"
}

# Says why there is no VM to be had.
vm_obstacle() {
        if [ "$(uname -m)" != x86_64 ]; then
                echo "the VM's kernel is made for x86_64 only"
                return 1
        fi
        (host_needs qemu-system-x86_64=qemu-system-x86) && return 0
        echo "qemu cannot be installed here"
        return 1
}

# Sets ACCEL. A /dev/kvm may be there and yet not run a stock kernel, so let one show that it comes to life (it panics
# at once for want of a root, which ends qemu).
vm_accel() {
        ACCEL=tcg,thread=multi
        [ -w /dev/kvm ] || return 0
        local out
        out=$(timeout --kill-after=1 10 qemu-system-x86_64 -accel kvm -cpu host -m 256 -nodefaults -no-user-config \
                -display none -no-reboot -serial stdio -kernel "$1/vmlinuz" \
                -append "console=ttyS0 panic=-1 root=none" </dev/null 2>/dev/null) || true
        case $out in
                *"Kernel panic"*) ACCEL=kvm ;;
                *) say "/dev/kvm is there but runs no kernel: emulating" ;;
        esac
}

# The second layer: what is installed, and the checkout.
vm_payload_base() {
        local p=$1/payload
        mkdir -p "$p"
        [ -z "${STAGE:-}" ] || cp -al "$STAGE/." "$p/"
        mkdir -p "$p/src" "$p/etc/systemd/system" "$p/var/lib/agentd" "$p/var/cache/agentd-test" "$p/usr/lib/agentd-dev"
        tar -C "$CHECKOUT" --exclude=./.git -cf - . | tar -C "$p/src" -xf -
        chown -R 0:0 "$p/src"
        [ -z "$SANITIZE" ] || sanitize_layer "$p"
}

# And the unit that runs the tests.
# shellcheck disable=SC2016 # expanded in the VM
vm_payload() {
        local p=$1/payload
        vm_payload_base "$1"
        ln "$(recipe_path test_image)" "$p/var/cache/agentd-test/rootfs.tar"
        ln -s /dev/null "$p/etc/systemd/system/serial-getty@.service" # it would hang up the line of the tests
        echo '/dev/vdc /var/lib/agentd ext4 defaults 0 0' >"$p/etc/fstab"
        cat >"$p/etc/systemd/system/agentd-dev.target" <<-'END'
		[Unit]
		Requires=multi-user.target
		Wants=agentd-dev-tests.service
		After=multi-user.target
		AllowIsolate=yes
		END
        cat >"$p/etc/systemd/system/agentd-dev-tests.service" <<-'END'
		[Unit]
		After=multi-user.target
		[Service]
		Type=exec
		ExecStart=/bin/bash /usr/lib/agentd-dev/run
		StandardOutput=tty
		StandardError=tty
		TTYPath=/dev/ttyS0
		END
        {
                echo 'export HOME=/root USER=root LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 AGENTD_VM=1'
                echo 'export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin'
                [ -z "$SANITIZE" ] || printf 'export %q\n' "${SANITIZE_ENV[@]}"
                echo 'mkdir -p /mnt/out && cd /root'
                echo 'echo "up: kernel $(uname -r) after $(cut -d" " -f1 /proc/uptime) s"'
                printf '%q ' "${PYTEST[@]}"
                printf '\n%s\n' 'echo $? >/mnt/out/status' \
                        'journalctl --no-pager -o short-precise >/mnt/out/journal.txt' \
                        'tar -C /mnt/out -cf /dev/vdd . && sync' 'systemctl poweroff --force --force'
        } >"$p/usr/lib/agentd-dev/run"
}

suite_vm() {
        local why image
        [ -d "$CHECKOUT/tests/vm" ] || { skip_suite vm "there is no tests/vm"; return; }
        if ! why=$(vm_obstacle); then
                skip_suite vm "$why"
                return
        fi
        run ensure vm_image "the virtual machine's image" || exit 1
        image=$(recipe_path vm_image)
        vm_accel "$image"
        case $PATTERN in
                power*) ;;
                *) vm_tests "$image" ;;
        esac
        case $PATTERN in
                '' | power*) vm_power "$image" ;;
        esac
}

# What runs in one boot of the machine.
vm_tests() {
        local rc=0 image=$1 dir status=none
        run ensure test_image "the tests' image" || exit 1
        pytest_command vm /mnt/out/vm.xml
        scratch_new dir
        mkdir "$dir/out"
        vm_payload "$dir"
        truncate -s 16G "$dir/state.img"
        truncate -s 256M "$dir/results.img"
        in_root --net "+$dir:/vm" -- /bin/sh -ec '
                mkfs.erofs --quiet /vm/payload.erofs /vm/payload
                mkfs.ext4 -q -F -E lazy_itable_init=1,nodiscard /vm/state.img' || die "The VM's disks could not be made."
        say "booting the virtual machine (accelerator ${ACCEL%%,*})"
        run timeout --kill-after=10 --foreground "$VM_SECONDS" setpriv --pdeathsig KILL \
                qemu-system-x86_64 -accel "$ACCEL" -cpu max -smp 2 -m 2048 -machine q35 -nodefaults -no-user-config \
                -display none -no-reboot -nic none -serial stdio \
                -kernel "$image/vmlinuz" -initrd "$image/initrd" -append \
                "console=ttyS0 quiet root=/dev/vda rootfstype=erofs ro panic=-1 fsck.mode=skip systemd.unit=agentd-dev.target systemd.show_status=no systemd.log_target=journal" \
                -drive "file=$image/root.erofs,if=virtio,format=raw,readonly=on" \
                -drive "file=$dir/payload.erofs,if=virtio,format=raw,readonly=on" \
                -drive "file=$dir/state.img,if=virtio,format=raw,cache=unsafe" \
                -drive "file=$dir/results.img,if=virtio,format=raw,cache=unsafe" </dev/null \
                > >(tee "$dir/console.log") 2>&1 || rc=$?
        tar -C "$dir/out" -xf "$dir/results.img" 2>/dev/null || true
        [ ! -e "$dir/out/status" ] || status=$(<"$dir/out/status")
        [ "$status" != none ] || say "vm: the machine left no results (qemu ended with status $rc)"
        count_reports vm "$(pytest_status "$status")" "$dir/out/vm.xml"
        if [ "$(pytest_status "$status")" != 0 ]; then
                mkdir -p "$CACHE/logs/vm-$$"
                cp -r "$dir/out" "$dir/console.log" "$CACHE/logs/vm-$$/"
                say "console and journal of the virtual machine: $CACHE/logs/vm-$$"
        fi
}
