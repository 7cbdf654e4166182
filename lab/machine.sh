#!/bin/bash
# Boots one machine of the rack and becomes its QEMU process.
#
#   machine.sh CACHE RUN NAME ACCEL
#
# CACHE is the folder that root.sh printed, RUN the folder of the rack's run, NAME is switch, host-a or host-b:
#
#   switch   one processor, 1 GiB: a VLAN-aware bridge between the hosts' NICs, and on the management network the server
#   host-*   the hypervisor of host.sh: VT-d, two NUMA nodes, an SR-IOV NIC (igb) on node 1
#
# Cables are datagram sockets in RUN: what one machine sends to cable X-a, switch or host reads at its own end. What
# goes through the hosts' RoCE cables is kept in RUN/host-*.pcap, taken by QEMU and not by any kernel under test.
# Each machine has one NIC more, for ssh from the loopback of this machine: its port is in RUN/NAME.port.
# shellcheck disable=SC2054 # the commas are QEMU's
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=qemu.sh
. "$here/qemu.sh"
cache=$1 run=$2 name=$3 accel=$4

# cable ID END OTHER_END is QEMU's netdev for one end of a cable.
cable() { echo "dgram,id=$1,local.type=unix,local.path=/mnt/$2.cable,remote.type=unix,remote.path=/mnt/$3.cable"; }

forward="hostfwd=tcp:127.0.0.1:$(<"$run/$name.port")-:22"
if [[ $name == switch ]]; then forward+=",hostfwd=tcp:127.0.0.1:$(<"$run/server.port")-:7443"; fi
rm -f "$run"/"$name"-*.cable
args=(
	-name "$name" -nodefaults -display none
	-drive "if=none,id=root,file=/srv/root.img,format=raw,snapshot=on,cache=unsafe"
	-device virtio-blk-pci,drive=root,bus=pcie.0
	-drive "if=none,id=lab,file=/mnt/disk.img,format=raw,readonly=on,file.locking=off"
	-device virtio-blk-pci,drive=lab,bus=pcie.0
	-netdev "user,id=ssh,restrict=on,$forward"
	-serial "file:/mnt/$name.console"
	-kernel /srv/vmlinuz -initrd /srv/initrd.img
)
if [[ $name == switch ]]; then
	args+=(-machine q35,sata=off,smbus=off,i8042=off,vmport=off -smp 1 -m 1G)
	args+=(-device virtio-net-pci,netdev=ssh,bus=pcie.0,mac=52:54:00:00:00:01)
	for letter in a b; do
		args+=(
			-netdev "$(cable "mgmt-$letter" "switch-mgmt-$letter" "host-$letter-mgmt")"
			-device "virtio-net-pci,netdev=mgmt-$letter,bus=pcie.0,mac=52:54:00:00:01:0$letter"
			-netdev "$(cable "roce-$letter" "switch-roce-$letter" "host-$letter-roce")"
			-device "virtio-net-pci,netdev=roce-$letter,bus=pcie.0,mac=52:54:00:00:02:0$letter"
			-object "filter-dump,id=dump-$letter,netdev=roce-$letter,file=/mnt/host-$letter.pcap,maxlen=256"
		)
	done
else
	letter=${name#host-}
	args+=(
		-machine q35,kernel-irqchip=split,sata=off,smbus=off,i8042=off,vmport=off -smp 3 -m 3G
		-object memory-backend-ram,id=m0,size=1536M -numa node,nodeid=0,cpus=0,memdev=m0
		-object memory-backend-ram,id=m1,size=1536M -numa node,nodeid=1,cpus=1-2,memdev=m1
		-device intel-iommu,intremap=on,caching-mode=on
		-device pxb-pcie,id=pxb1,bus_nr=128,numa_node=1,bus=pcie.0
		-device pcie-root-port,id=rp1,bus=pxb1,chassis=1,slot=1
		-device "virtio-net-pci,netdev=ssh,bus=pcie.0,mac=52:54:00:0$letter:00:01"
		-netdev "$(cable mgmt "$name-mgmt" "switch-mgmt-$letter")"
		-device "virtio-net-pci,netdev=mgmt,bus=pcie.0,mac=52:54:00:0$letter:01:01"
		-netdev "$(cable roce "$name-roce" "switch-roce-$letter")"
		-device "igb,bus=rp1,netdev=roce,mac=52:54:00:0$letter:02:01"
	)
fi
mapfile -t -O "${#args[@]}" args < <(accelerate "$accel")
qemu_in_root "$cache" "$run" "${args[@]}" \
	-append "$kernel_arguments lab.role=$name systemd.hostname=$name"
