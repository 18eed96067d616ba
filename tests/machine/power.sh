# SPDX-License-Identifier: LGPL-2.1-or-later
# shellcheck shell=bash
#
# The other half of the suite `vm`: the power of a virtual machine is cut while it works on environments and runners
# (tests/vm/power). Its disk and its serial line are served by host.py, which runs in the root; here the machine is booted on
# them, and qemu killed (SIGKILL, by its pid) when host.py says so. What the guest did not flush is lost: qemu's own
# cache modes would not do that, since what it has written is safe in this host's page cache.
#
# AGENTD_POWER_CUTS=N   how often (20 makes for all kinds of work, two or three points each)
# AGENTD_POWER_SEED=N   to have the same cuts again

POWER_CUTS_DEFAULT=4

# A target without anything that this does not need, so that it boots soon: no udev, no logins. The disk has agentd's state
# and the keys of this machine, which cost time to make (and are good only with the machine id that they were made with).
power_payload() {
        local s=$1/payload/etc/systemd/system unit
        vm_payload_base "$1"
        for unit in serial-getty@.service systemd-udevd.service systemd-udevd-control.socket systemd-udevd-kernel.socket \
                systemd-udev-trigger.service systemd-udev-settle.service systemd-logind.service systemd-importd.socket \
                systemd-sysext.socket systemd-hostnamed.socket systemd-update-utmp.service ldconfig.service \
                systemd-machine-id-commit.service systemd-hwdb-update.service systemd-random-seed.service \
                systemd-journal-catalog-update.service systemd-update-done.service systemd-journal-flush.service \
                systemd-binfmt.service systemd-modules-load.service kmod-static-nodes.service dev-hugepages.mount \
                dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount modprobe@.service systemd-sysctl.service \
                systemd-tpm2-setup-early.service systemd-tpm2-setup.service polkit.service; do
                ln -s /dev/null "$s/$unit"
        done
        cat >"$s/agentd-dev.target" <<-'END'
		[Unit]
		Requires=basic.target dbus.socket
		Wants=agentd-dev-power.service agentd.service agent-bridged.socket agent-credentiald.socket
		After=basic.target
		AllowIsolate=yes
		END
        cat >"$s/agentd-dev-disk.service" <<-'END'
		[Unit]
		DefaultDependencies=no
		Before=local-fs.target
		[Service]
		Type=oneshot
		RemainAfterExit=yes
		ExecStart=/bin/sh -ec 'modprobe loop; mount -o noatime /dev/vdc /mnt; mkdir -p /etc/credstore.encrypted; cd /mnt; \
		        for d in var/lib/agentd var/lib/systemd var/lib/agent-credential etc/credstore.encrypted; do \
		                mkdir -p /$d $d; mount --bind $d /$d; done'
		END
        mkdir "$s/local-fs.target.requires"
        ln -s ../agentd-dev-disk.service "$s/local-fs.target.requires/"
        cat >"$s/agentd-dev-power.service" <<-'END'
		[Unit]
		After=basic.target dbus.socket
		[Service]
		Environment=HOME=/root LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
		ExecStart=/usr/bin/python3 /src/tests/vm/power/guest.py /dev/ttyS0
		END
}

# One boot; until host.py has seen enough of it.
power_boot() {
        local image=$1 dir=$2 pid host=$3
        rm -f "$dir/kill"
        setpriv --pdeathsig KILL \
                qemu-system-x86_64 -accel "$ACCEL" -cpu max -smp 2 -m 1024 -machine q35 -nodefaults -no-user-config \
                -display none -no-reboot -nic none -serial "unix:$dir/serial.sock" \
                -kernel "$image/vmlinuz" -initrd "$image/initrd" -append \
                "console=ttyS0 quiet root=/dev/vda rootfstype=erofs ro panic=-1 fsck.mode=skip systemd.unit=agentd-dev.target systemd.show_status=no systemd.log_target=journal systemd.machine_id=5f0c7a6e2d9b4c1e8a3f6b7d9e0c1a2b" \
                -drive "file=$image/root.erofs,if=virtio,format=raw,readonly=on" \
                -drive "file=$dir/payload.erofs,if=virtio,format=raw,readonly=on" \
                -drive "file=nbd+unix:///?socket=$dir/disk.sock,if=virtio,format=raw,cache=writeback" \
                </dev/null >>"$dir/qemu.log" 2>&1 &
        pid=$!
        JOBS+=("$pid")
        disown "$pid"
        while kill -0 "$pid" 2>/dev/null && kill -0 "$host" 2>/dev/null && [ ! -e "$dir/kill" ]; do
                run sleep 0.05
        done
        kill -KILL "$pid" 2>/dev/null || true
        timeout 300 tail --pid="$pid" --sleep-interval=0.02 -f /dev/null 2>/dev/null || true
        job_forget "$pid"
}

vm_power() {
        local image=$1 dir rc=0 host cuts=${AGENTD_POWER_CUTS:-$POWER_CUTS_DEFAULT} seed=${AGENTD_POWER_SEED:-$SRANDOM}
        scratch_new dir
        power_payload "$dir"
        truncate -s 16G "$dir/state.img" # an edit sets some aside
        in_root --net "+$dir:/vm" -- /bin/sh -ec '
                mkfs.erofs --quiet /vm/payload.erofs /vm/payload
                mkfs.ext4 -q -F -E lazy_itable_init=1,nodiscard /vm/state.img' ||
                die "The VM's disks could not be made."
        say "power: $cuts cuts, AGENTD_POWER_SEED=$seed (accelerator ${ACCEL%%,*})"
        in_root --net "+$dir:/vm" -- python3 /src/tests/vm/power/host.py /vm --cuts "$cuts" --seed "$seed" \
                --report /vm/power.xml </dev/null &
        host=$!
        JOBS+=("$host")
        while kill -0 "$host" 2>/dev/null && [ ! -e "$dir/listening" ]; do
                run sleep 0.05
        done
        while kill -0 "$host" 2>/dev/null && [ ! -e "$dir/over" ]; do
                power_boot "$image" "$dir" "$host"
        done
        wait "$host" || rc=$?
        job_forget "$host"
        count_reports vm "$rc" "$dir/power.xml"
        if [ "$rc" != 0 ]; then
                mkdir -p "$CACHE/logs/power-$$"
                cp "$dir/console.log" "$dir/qemu.log" "$dir/power.xml" "$CACHE/logs/power-$$/" 2>/dev/null || true
                say "console of the virtual machine: $CACHE/logs/power-$$"
        fi
}
