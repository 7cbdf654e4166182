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
# QEMU of Debian 12 (7.2, 10.0.2) and Ubuntu 24.04 (8.2).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=qemu.sh
. "$here/qemu.sh"
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
mapfile -t -O "${#args[@]}" args < <(accelerate "$accel")
qemu_in_root "$cache" "$run" "${args[@]}" -append "$kernel_arguments"
