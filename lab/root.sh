#!/bin/bash
# Builds the root of an emulated hypervisor once and prints the folder that holds it.
#
# The folder is ${VERBENA_LAB_CACHE:-${XDG_CACHE_HOME:-~/.cache}/verbena/lab}/<hash of this recipe>:
#   root/      Debian 13 with kernel, libvirt and QEMU; also the place to run the outer QEMU from
#   root.img   the same as an ext4 image; boot it with snapshot=on
#   vmlinuz    its kernel
#   initrd.img its initrd, only what finds the root disk
#   guest.img  the disk of the small guest that runs in the hypervisors' VMs
#   key        the private key that the hypervisors' root takes by ssh
# A change of this file or of guest/ makes a new folder and removes the old ones.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=common.sh
. "$here/common.sh"

readonly suite=trixie
readonly mirror=${VERBENA_LAB_MIRROR:-http://deb.debian.org/debian}
readonly keyring=/usr/share/keyrings/debian-archive-keyring.gpg # without it debootstrap would trust whatever it gets
readonly packages=(
	systemd-sysv udev kmod dbus initramfs-tools linux-image-amd64
	iproute2 pciutils rdma-core ethtool nftables iputils-ping openssh-server tcpdump
	ibverbs-utils perftest rdmacm-utils
	busybox-static syslinux mtools dosfstools xz-utils # what the guest's disk is made of and with
	qemu-system-x86 qemu-utils libvirt-daemon-system libvirt-daemon-driver-qemu libvirt-clients apparmor
)
# A private mount and process namespace: what the install mounts or starts is gone when it ends, however it ends,
# and it ends with this script.
readonly apart=(setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child --propagation private)

main() {
	local cache key folder
	cache=$(cache_folder)
	key=$(cat "${BASH_SOURCE[0]}" "$here"/guest/* | sha256sum | cut -c1-12)
	folder=$cache/$key
	if [[ -e $folder/complete ]]; then
		echo "$folder"
		return
	fi
	need_root "building the lab's root"
	need_tools debootstrap:debootstrap mke2fs:e2fsprogs unshare:util-linux setpriv:util-linux flock:util-linux
	need_file "$keyring" debian-archive-keyring
	mkdir -p "$cache"
	need_disk "$cache" 5
	exec 9>"$cache/lock"
	flock 9 # two runs at once: the second waits and finds the root made
	if [[ ! -e $folder/complete ]]; then
		build "$folder"
		touch "$folder/complete"
		remove_others "$cache" "$key"
	fi
	echo "$folder"
}

build() {
	local folder=$1
	local root=$folder/root
	say "building the root of the emulated hypervisor in $folder (once; 2 to 4 minutes, 2 GB)"
	rm -rf --one-file-system "$folder"
	mkdir -p "$folder"
	if ! { install_debian "$root" && configure "$root" && let_in "$folder" && guest_disk "$folder" && image "$folder"; } >"$folder/build.log" 2>&1; then
		tail -n 25 "$folder/build.log" >&2
		die "the root was not built; the whole log is $folder/build.log" \
			"is $mirror reachable? another mirror: VERBENA_LAB_MIRROR=URL"
	fi
}

install_debian() {
	local root=$1
	"${apart[@]}" debootstrap --variant=minbase --force-check-gpg --keyring="$keyring" "$suite" "$root" "$mirror" || return
	echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/lab"
	printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
	chmod 755 "$root/usr/sbin/policy-rc.d"
	# The initrd holds the root disk's driver and file system, no more: it is unpacked by an emulated processor.
	mkdir -p "$root/etc/initramfs-tools/conf.d"
	printf 'MODULES=list\nCOMPRESS=gzip\nFSTYPE=ext4\n' >"$root/etc/initramfs-tools/conf.d/lab"
	printf '%s\n' virtio_pci virtio_blk ext4 >"$root/etc/initramfs-tools/modules.lab"
	# shellcheck disable=SC2016 # $1 and $@ are the inner shell's
	"${apart[@]}" bash -euc '
		root=$1; shift
		mount -t proc proc "$root/proc"
		export DEBIAN_FRONTEND=noninteractive LC_ALL=C
		chroot "$root" apt-get -o Acquire::Languages=none update
		chroot "$root" apt-get install -y --no-install-recommends initramfs-tools
		cat "$root/etc/initramfs-tools/modules.lab" >>"$root/etc/initramfs-tools/modules"
		chroot "$root" apt-get install -y --no-install-recommends "$@"
		chroot "$root" apt-get clean
	' _ "$root" "${packages[@]}"
}

configure() {
	local root=$1
	rm -rf "$root"/var/lib/apt/lists/* "$root/usr/sbin/policy-rc.d"
	rm -f "$root/usr/bin/qemu-system-i386" # libvirt asks every emulator for all it can do, which takes seconds each
	find "$root/etc/apparmor.d" -maxdepth 1 -type f ! -name '*libvirt*' -delete # compiled at each boot, for seconds
	echo hypervisor >"$root/etc/hostname"
	printf '127.0.0.1 localhost hypervisor\n' >"$root/etc/hosts"
	printf '/dev/vda / ext4 defaults 0 0\n' >"$root/etc/fstab"
	: >"$root/etc/machine-id"
	# The lab's program comes on a disk of its own, so that the root does not change with it.
	cat >"$root/etc/systemd/system/lab.service" <<-'UNIT'
		[Unit]
		Description=The lab's program from the second disk
		After=libvirtd.socket
		Wants=libvirtd.socket
		ConditionKernelCommandLine=!lab.role
		SuccessAction=poweroff-force
		FailureAction=poweroff-force
		[Service]
		Type=oneshot
		ExecStartPre=/bin/mount -o ro /dev/vdb /mnt
		ExecStart=/bin/bash /mnt/inhost.sh
		StandardOutput=journal+console
		[Install]
		WantedBy=multi-user.target
	UNIT
	# The machines of the rack come back after a reboot, so nothing powers them off.
	cat >"$root/etc/systemd/system/rack.service" <<-'UNIT'
		[Unit]
		Description=The part that this machine has in the lab's rack
		After=libvirtd.socket ssh.service
		Wants=libvirtd.socket
		ConditionKernelCommandLine=lab.role
		[Service]
		Type=exec
		ExecStartPre=/bin/mount -o ro /dev/vdb /mnt
		ExecStart=/bin/bash /mnt/rack.sh
		KillMode=process
		StandardOutput=journal+console
		[Install]
		WantedBy=multi-user.target
	UNIT
	local unit off=(
		apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer
		logrotate.timer getty.target getty-static.service systemd-networkd-wait-online.service
		systemd-timesyncd.service libvirt-guests.service systemd-hwdb-update.service
		systemd-journal-catalog-update.service ldconfig.service
	)
	for unit in "${off[@]}"; do
		ln -sf /dev/null "$root/etc/systemd/system/$unit"
	done
	for unit in lab rack; do
		ln -sf "/etc/systemd/system/$unit.service" "$root/etc/systemd/system/multi-user.target.wants/$unit.service"
	done
}

# let_in lets the lab's own key in as root. The hosts are reached through a port on the loopback of this machine only.
let_in() {
	local root=$1/root
	chroot "$root" ssh-keygen -q -t ed25519 -N '' -C lab -f /tmp/key || return
	install -d -m 700 "$root/root/.ssh"
	mv "$root/tmp/key.pub" "$root/root/.ssh/authorized_keys"
	mv "$root/tmp/key" "$1/key"
	rm -f "$root"/etc/ssh/ssh_host_{rsa,ecdsa}_key* # a handshake costs less with the one that is left
	printf 'UseDNS no\nUsePAM no\nPasswordAuthentication no\n' >"$root/etc/ssh/sshd_config.d/lab.conf"
}

guest_disk() { "${apart[@]}" "$here/guest/build.sh" "$1/root" "$1/guest.img"; }

image() {
	local folder=$1
	cp "$folder"/root/boot/vmlinuz-* "$folder/vmlinuz" || return
	cp "$folder"/root/boot/initrd.img-* "$folder/initrd.img" || return
	truncate -s 3G "$folder/root.img" || return
	mke2fs -q -t ext4 -O ^has_journal -L hypervisor -d "$folder/root" "$folder/root.img"
}

remove_others() {
	local cache=$1 key=$2 other
	for other in "$cache"/*/; do
		other=$(basename "$other")
		if [[ $other =~ ^[0-9a-f]{12}$ && $other != "$key" ]]; then
			# A run of another checkout holds the lock while it uses its root.
			flock --nonblock "$cache/$other/complete" rm -rf --one-file-system "${cache:?}/$other" || true
		fi
	done
}

main "$@"
