#!/bin/bash
# Makes the disk of the lab's small guest: the Debian kernel, a boot loader and an initramfs with busybox, the VF's
# driver, soft RoCE and perftest, nothing else. It boots in an emulated machine inside an emulated machine, where a
# stock Debian system takes longer than anyone waits.
#
#   build.sh ROOT DISK
#
# ROOT is a Debian root that has the packages of root.sh. DISK is a raw image: a FAT file system whose boot sector is
# syslinux, which firmware starts as it starts any disk.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$1 disk=$2
readonly modules=(
	virtio_pci virtio_console ahci sr_mod isofs igbvf crc32_generic ib_uverbs rdma_rxe
)
readonly on_demand=(8021q macvlan) # the kernel asks for these when somebody makes such an interface
readonly programs=(
	ip rdma ethtool
	ibv_devinfo ibv_rc_pingpong ib_write_bw ib_write_lat rping
)
# Emulated twice, code that runs for the first time costs most; so whatever can be left out is left out.
readonly arguments="console=ttyS0 quiet mitigations=off nokaslr tsc=reliable no_timer_check rcupdate.rcu_expedited=1 audit=0 random.trust_cpu=on panic=-1\
 lsm=capability psi=0 cgroup_disable=memory nowatchdog no5lvl cryptomgr.notests=1"

main() {
	local work version
	work=$(mktemp -d)
	# shellcheck disable=SC2064 # the folder of now
	trap "rm -rf '$work'" EXIT
	version=$(basename "$root"/lib/modules/*)
	mkdir -p "$work"/{bin,etc,proc,sys,dev,tmp,seed,root,usr/bin,lib}
	install -m 755 "$here/init" "$work/init"
	install -m 755 "$root/usr/bin/busybox" "$work/bin/busybox"
	chroot "$root" /usr/bin/busybox --list | while read -r applet; do
		[[ -e $work/bin/$applet ]] || ln -s busybox "$work/bin/$applet"
	done
	copy_programs "$work"
	copy_modules "$work" "$version"
	(cd "$work" && find . -print0 | sort -z | "$root/usr/bin/busybox" cpio -0 -H newc -o 2>/dev/null) >"$disk.initrd"
	make_disk "$version"
	rm -f "$disk.initrd"
}

copy_programs() {
	local work=$1 program file library
	for program in "${programs[@]}"; do
		file=$(chroot "$root" /bin/sh -c "PATH=/usr/sbin:/usr/bin:/sbin:/bin command -v $program")
		rm -f "$work/bin/$program"
		cp -L "$root$file" "$work/bin/$program"
	done
	mkdir -p "$work/usr/lib/x86_64-linux-gnu/libibverbs" "$work/etc/libibverbs.d"
	cp -L "$root"/usr/lib/x86_64-linux-gnu/libibverbs/librxe-* "$work/usr/lib/x86_64-linux-gnu/libibverbs/"
	cp "$root/etc/libibverbs.d/rxe.driver" "$work/etc/libibverbs.d/"
	for file in "$work"/bin/{ip,rdma,ethtool,ibv_devinfo,ibv_rc_pingpong,ib_write_bw,ib_write_lat,rping} \
		"$work"/usr/lib/x86_64-linux-gnu/libibverbs/*; do
		libraries_of "${file#"$work"}" "$work"
	done | sort -u | while read -r library; do
		mkdir -p "$work$(dirname "$library")"
		cp -L "$root$library" "$work$library"
	done
}

# libraries_of prints the libraries that a copied file loads, by the root's own loader.
libraries_of() {
	local name
	name=$(basename "$1")
	cp "$2$1" "$root/tmp/$name"
	chroot "$root" /usr/bin/ldd "/tmp/$name" 2>/dev/null | grep -oE '/[^ ]+' || true
	rm -f "$root/tmp/$name"
}

# files_of prints a module's files in the order in which they load.
files_of() { chroot "$root" /sbin/modprobe --show-depends -S "$version" "$1" 2>/dev/null | sed -n 's/^insmod \([^ ]*\).*/\1/p'; }

copy_modules() {
	local work=$1 version=$2 module file
	for module in "${modules[@]}"; do files_of "$module"; done | awk '!seen[$0]++' | sed 's|^/usr||; s|[.]xz$||' >"$work/etc/modules"
	for module in "${modules[@]}" "${on_demand[@]}"; do files_of "$module"; done | sort -u | while read -r file; do
		file=${file#/usr}
		mkdir -p "$work$(dirname "$file")"
		cp "$root$file" "$work$file"
	done
	cp "$root/lib/modules/$version"/modules.{builtin,builtin.modinfo,order} "$work/lib/modules/$version/"
	find "$work" -name '*.ko.xz' -exec xz -d {} +
	mkdir -p "$root/tmp/base/lib" # depmod is the root's and looks below a base folder
	mv "$work/lib/modules" "$root/tmp/base/lib/modules"
	chroot "$root" /sbin/depmod -b /tmp/base "$version"
	mv "$root/tmp/base/lib/modules" "$work/lib/modules"
	rm -rf "$root/tmp/base"
}

make_disk() {
	local version=$1
	cp "$disk.initrd" "$root/tmp/initrd"
	cat >"$root/tmp/syslinux.cfg" <<-CFG
		SERIAL 0 115200
		DEFAULT guest
		PROMPT 0
		LABEL guest
		  LINUX vmlinuz
		  INITRD initrd
		  APPEND $arguments
	CFG
	rm -f "$root/tmp/guest.img"
	truncate -s 64M "$root/tmp/guest.img"
	chroot "$root" /bin/bash -euc '
		export PATH=/usr/sbin:/usr/bin:/sbin:/bin MTOOLS_SKIP_CHECK=1
		mountpoint -q /proc || mount -t proc proc /proc # syslinux names the image by its descriptor there
		mkfs.vfat -F 16 -n GUEST /tmp/guest.img >/dev/null
		mcopy -i /tmp/guest.img /tmp/initrd /tmp/syslinux.cfg ::
		mcopy -i /tmp/guest.img /boot/vmlinuz-'"$version"' ::vmlinuz
		syslinux --install /tmp/guest.img
	'
	mv "$root/tmp/guest.img" "$disk"
	rm -f "$root"/tmp/{initrd,syslinux.cfg}
}

main
