#!/bin/bash
# Prints kvm where KVM boots the lab's kernel, else tcg.
#
#   probe.sh CACHE
#
# That /dev/kvm exists says little: inside some clouds it opens and then hangs or resets a stock kernel. So boot
# the kernel without a root disk: where KVM works it panics for the lack of one, in a second or two, and says so.
set -euo pipefail
cache=$1

boots() {
	[[ -c /dev/kvm && -r /dev/kvm && -w /dev/kvm ]] || return
	# shellcheck disable=SC2016 # expanded by the inner shell
	unshare --mount --propagation private bash -euc '
		mount --rbind /dev "$1/root/dev"
		mount --bind "$1" "$1/root/srv"
		exec timeout -k 1 15 chroot "$1/root" qemu-system-x86_64 -nodefaults -display none -no-reboot -m 512M \
			-machine q35,kernel-irqchip=split -accel kvm -cpu host -device intel-iommu,intremap=on \
			-serial stdio -kernel /srv/vmlinuz -append "console=ttyS0 panic=-1"
	' _ "$cache" 2>&1 </dev/null | grep -q 'Unable to mount root'
}

if boots; then echo kvm; else echo tcg; fi
