# How the lab runs QEMU and what it tells each kernel; to be sourced.
# shellcheck shell=bash

# What keeps an emulated boot short: no speculation fences, no clock calibration, no fsck, expedited grace periods,
# of the security modules only those that libvirt hosts use, and no module for what has no use here.
# shellcheck disable=SC2034 # for those who source this
readonly kernel_arguments="root=/dev/vda rw console=ttyS0 quiet panic=-1 intel_iommu=on iommu=pt\
 mitigations=off nokaslr no5lvl audit=0 no_timer_check tsc=reliable fastboot rcupdate.rcu_expedited=1\
 lsm=lockdown,capability,yama,apparmor systemd.show_status=0 systemd.unit=multi-user.target\
 modprobe.blacklist=pcspkr,iTCO_wdt,lpc_ich,qemu_fw_cfg,button,intel_agp,drm"

# accelerate ACCEL prints QEMU's arguments for it, one a line.
accelerate() {
	case $1 in
	kvm) printf '%s\n' -accel kvm -cpu host ;;
	tcg) printf '%s\n' -accel tcg,thread=multi -cpu max,-svm ;; # with svm its VMs would run in KVM in emulated SVM
	*) echo "ACCEL is kvm or tcg, not $1" >&2 && return 2 ;;
	esac
}

# qemu_in_root CACHE RUN ARGUMENT… becomes QEMU, run from the Debian root in CACHE, which sees CACHE as /srv and RUN
# as /mnt. The mounts this takes live in a namespace of the process.
qemu_in_root() {
	# shellcheck disable=SC2016 # expanded by the inner shell
	exec unshare --mount --propagation private bash -euc '
		cache=$1 run=$2; shift 2
		mount --rbind /dev "$cache/root/dev"
		mount -t proc proc "$cache/root/proc"
		mount --bind "$cache" "$cache/root/srv"
		mount --bind "$run" "$cache/root/mnt"
		exec setpriv --pdeathsig KILL chroot "$cache/root" /usr/bin/env -i PATH=/usr/bin TMPDIR=/mnt qemu-system-x86_64 "$@"
	' _ "$@"
}
