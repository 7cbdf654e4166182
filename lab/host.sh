#!/bin/bash
# Boots one emulated hypervisor and becomes its QEMU process: killing this process ends the host, and nothing is left.
#
#   host.sh CACHE RUN ACCEL
#
# CACHE is the folder that root.sh printed. RUN is a folder with disk.img, the disk whose inhost.sh the host
# executes before it powers off; the host writes there report (what inhost.sh says), logs.tar and console.
# ACCEL is tcg or kvm (probe.sh tells which works).
#
# The host: q35 with VT-d, two NUMA nodes of 1.5 GiB, and an Intel 82576 (igb, SR-IOV) behind a root port on node 1,
# which has two of the three processors: room for two VMs beside their VFs. The NIC's wire ends in an unconnected
# hub: it has link, and no frame leaves the emulator.
#
# QEMU comes from the Debian 13 root and runs inside it: igb works there (10.0.13) and is broken or missing in the
# QEMU of Debian 12 (7.2, 10.0.2) and Ubuntu 24.04 (8.2). The mounts this takes live in a namespace of the process.
set -euo pipefail
cache=$1 run=$2 accel=$3

# shellcheck disable=SC2054 # the commas are QEMU's
args=(
	-name hypervisor -nodefaults -display none -no-reboot
	-machine q35,kernel-irqchip=split,sata=off,smbus=off,i8042=off,vmport=off -smp 3 -m 3G
	-object memory-backend-ram,id=m0,size=1536M -numa node,nodeid=0,cpus=0,memdev=m0
	-object memory-backend-ram,id=m1,size=1536M -numa node,nodeid=1,cpus=1-2,memdev=m1
	-device intel-iommu,intremap=on,caching-mode=on
	-device pxb-pcie,id=pxb1,bus_nr=128,numa_node=1,bus=pcie.0
	-device pcie-root-port,id=rp1,bus=pxb1,chassis=1,slot=1
	-netdev hubport,id=n0,hubid=0 -device igb,bus=rp1,netdev=n0,mac=52:54:00:00:01:01
	# The bus is named because the expander's would be the default one.
	-drive if=none,id=root,file=/srv/root.img,format=raw,snapshot=on,cache=unsafe
	-device virtio-blk-pci,drive=root,bus=pcie.0
	-drive if=none,id=lab,file=/mnt/disk.img,format=raw,readonly=on
	-device virtio-blk-pci,drive=lab,bus=pcie.0
	-device virtio-serial-pci,bus=pcie.0
	-chardev file,id=report,path=/mnt/report -device virtserialport,chardev=report,name=lab.report
	-chardev file,id=logs,path=/mnt/logs.tar -device virtserialport,chardev=logs,name=lab.logs
	-serial file:/mnt/console
	-kernel /srv/vmlinuz -initrd /srv/initrd.img
)
kernel="root=/dev/vda rw console=ttyS0 quiet panic=-1 intel_iommu=on iommu=pt"
# What keeps an emulated boot short: no speculation fences, no clock calibration, no fsck, expedited grace periods,
# of the security modules only those that libvirt hosts use, and no module for what has no use here.
kernel+=" mitigations=off nokaslr audit=0 no_timer_check tsc=reliable fastboot rcupdate.rcu_expedited=1"
kernel+=" lsm=lockdown,capability,yama,apparmor systemd.show_status=0 systemd.unit=multi-user.target"
kernel+=" modprobe.blacklist=pcspkr,iTCO_wdt,lpc_ich,qemu_fw_cfg,button,intel_agp,drm"
case $accel in
kvm) args+=(-accel kvm -cpu host) ;;
tcg) args+=(-accel "tcg,thread=multi" -cpu "max,-svm") ;; # with svm its VMs would run in KVM in emulated SVM
*) echo "host.sh: ACCEL is kvm or tcg, not $accel" >&2 && exit 2 ;;
esac

# shellcheck disable=SC2016 # expanded by the inner shell
exec unshare --mount --propagation private bash -euc '
	cache=$1 run=$2; shift 2
	mount --rbind /dev "$cache/root/dev"
	mount -t proc proc "$cache/root/proc"
	mount --bind "$cache" "$cache/root/srv"
	mount --bind "$run" "$cache/root/mnt"
	exec setpriv --pdeathsig KILL chroot "$cache/root" /usr/bin/env -i PATH=/usr/bin TMPDIR=/mnt qemu-system-x86_64 "$@"
' _ "$cache" "$run" "${args[@]}" -append "$kernel"
