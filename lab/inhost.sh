#!/bin/bash
# Runs inside the emulated hypervisor, as root, from the read-only disk at /mnt: starts server and agent, does the
# main job with the CLI, and checks each claim against the kernel: ip link, sysfs, /proc. Nothing but these and
# bin/verbena is used, so what is checked can't be made true by what checks it.
set -uo pipefail
readonly lab=/mnt state=/var/lib/verbena logs=/var/log/verbena
readonly server=https://127.0.0.1:7443
export HOME=/root LC_ALL=C.UTF-8

# shellcheck source=kernel.sh
. "$lab/kernel.sh"
# shellcheck source=check.sh
. "$lab/check.sh"

main() {
	install -d "$state" # QEMU's user must get through to the disks
	install -d -m 700 "$logs"
	install "$lab/verbena" /usr/local/bin/verbena
	note "kernel $(uname -r), up"
	step start_server
	step join
	step commission
	step create first
	step crash_while_creating second
	step crash_while_running
	step delete first second
}

start_server() {
	verbena server --data "$state/server" --listen 127.0.0.1:7443 >"$logs/server.log" 2>&1 &
	eventually 90 "login with the server's first token" "logged in" login
}

login() { verbena login "$server" --bootstrap "$state/server" >>"$logs/cli.log" 2>&1 && echo "logged in"; }

join() {
	verbena apply -f "$lab/manifests/platform.yaml" >>"$logs/cli.log" 2>&1
	is "apply of fabric, flavor, image, host and tenant" 0 $?
	(umask 077 && verbena host join-token hypervisor >"$state/join-token" 2>>"$logs/cli.log")
	is "a join token for the host" 0 $?
	start_agent --join-token "$state/join-token"
	eventually 120 "the host is up" up field host/hypervisor .status.state
	is "the inventory is of a real kernel" "$(uname -r) false" \
		"$(field host/hypervisor '"\(.status.inventory.kernel) \(.status.inventory.simulated // false)"')"
	is "the PF's NUMA node" "$(<"$pf/numa_node")" "$(field host/hypervisor '.status.inventory.pfs[0].numa')"
}

agent=
start_agent() {
	verbena agent --server "$server" --state "$state/agent" "$@" >>"$logs/agent.log" 2>&1 &
	agent=$!
}

kill_agent() {
	kill -KILL "$agent"
	wait "$agent" 2>/dev/null
}

commission() {
	eventually 120 "four VFs are parked" 4 parked
	is "sriov_numvfs" 4 "$(<"$pf/sriov_numvfs")"
	local i macs
	for i in 0 1 2 3; do parked_in_kernel "$i"; done
	macs=$(for i in 0 1 2 3; do vf_mac "$i"; done | sort -u | wc -l)
	is "parking addresses that differ" 4 "$macs"
}

create() {
	local vm=$1
	apply "$vm" || return
	attached "$vm"
}

# crash_while_creating kills the agent once it has begun to write the VF and starts it again.
crash_while_creating() {
	local vm=$1 before deadline
	before=$(tagged)
	apply "$vm" || return
	deadline=$((SECONDS + 60))
	until [[ $(tagged) != "$before" ]] || ((SECONDS > deadline)); do sleep 0.05; done
	kill_agent
	is "the agent died with the VF half programmed: VFs with a VLAN" "$((before + 1))" "$(tagged)"
	is "its QEMU at that moment" none "$(qemu_of_vm "research.$vm")"
	start_agent
	attached "$vm"
}

# crash_while_running kills the agent under two running VMs: they and their VFs must not notice.
crash_while_running() {
	local before after
	before=$(holders; vf_lines)
	kill_agent
	sleep 1
	after=$(holders; vf_lines)
	is "VMs and VFs without an agent" "$before" "$after"
	start_agent
	eventually 60 "the host is up again" up field host/hypervisor .status.state
	sleep 5 # an agent that rewrites what is right would do so now
	after=$(holders; vf_lines)
	is "VMs and VFs under a new agent" "$before" "$after"
}

# delete takes all VMs at once: each waits for its guest to shut down, which has no system that could.
delete() {
	local vm index=() qemu=() i
	for vm in "$@"; do
		i=$(field "vm/$vm" '.status.vfs[0].index')
		index+=("$i")
		qemu+=("$(holder "$(iommu_group "$i")")")
	done
	verbena delete --yes --tenant research "${@/#/vm/}" --wait --timeout 4m >>"$logs/cli.log" 2>&1
	is "delete of $*" 0 $?
	for i in "${!index[@]}"; do
		is "process ${qemu[i]}, its QEMU" gone "$(cat "/proc/${qemu[i]}/comm" 2>/dev/null || echo gone)"
		is "holders of its VFIO group" none "$(holder "$(iommu_group "${index[i]}")")"
	done
	eventually 60 "all VFs are back in the pool" 4 parked
	for i in "${index[@]}"; do parked_in_kernel "$i"; done
}

apply() {
	verbena apply -f "$lab/manifests/network.yaml" -f "$lab/manifests/$1.yaml" >>"$logs/cli.log" 2>&1
	local status=$?
	is "apply of VM $1" 0 "$status"
}

# attached checks that what the API says of a running VM's VF is what kernel and QEMU have.
attached() {
	local vm=$1 index group qemu told
	if ! eventually 300 "VM $vm" Ready field "vm/$vm" .status.phase; then
		note "it says: $(field "vm/$vm" .status.message)"
		return
	fi
	index=$(field "vm/$vm" '.status.vfs[0].index')
	told=$(field "vm/$vm" '.status.vfs[0] | "mac \(.mac) vlan \(.vlan) qos \(.qos) spoofchk \(if .spoofCheck then "on" else "off" end) trust off"')
	is "VF $index as the API tells it, in the kernel" "$told" "$(vf_attributes "$index")"
	is "its priority is the fabric's" 3 "$(field "vm/$vm" '.status.vfs[0].qos')"
	is "its VLAN is of the fabric's pool" yes "$(field "vm/$vm" 'if .status.vfs[0].vlan >= 100 and .status.vfs[0].vlan <= 199 then "yes" else .status.vfs[0].vlan end')"
	group=$(iommu_group "$index")
	qemu=$(holder "$group")
	is "one QEMU holds /dev/vfio/$group" qemu-system-x86 "$(cat "/proc/$qemu/comm" 2>/dev/null)"
	is "that QEMU has the VF and no other" "$(pci_address "$index")" "$(vfs_of_qemu "$qemu")"
	is "its memory is bound to the VF's NUMA node" "bind:$(<"$pf/numa_node")" "$(memory_policy "$qemu")"
}

# field KIND/NAME JQ prints a field of an object as the API tells it.
field() { verbena get "$1" --tenant research -o json --jq "$2" 2>>"$logs/cli.log"; }

parked() { field host/hypervisor '[.status.inventory.pfs[0].vfs[]? | select(.state == "parked")] | length'; }

parked_in_kernel() {
	local vf=$pf/virtfn$1 group
	group=$(iommu_group "$1")
	is "VF $1: driver, override" "vfio-pci vfio-pci" "$(link "$vf/driver") $(<"$vf/driver_override")"
	is "VF $1: /dev/vfio/$group" "character special file" "$(stat -c %F "/dev/vfio/$group" 2>&1)"
	is "VF $1: parked" "mac unicast vlan 0 qos 0 spoofchk on trust off" "$(vf_attributes "$1" | sed -E 's/mac .[26ae]:[0-9a-f:]+/mac unicast/')"
	is "VF $1: rates" none "$(word '((min|max)_tx_rate [^,]*)' "$(vf_line "$1")" none)"
}

say() { printf '%5.0f s  %s\n' "$(cut -d' ' -f1 /proc/uptime)" "$*" >&3; }

# report opens the ports out of the host; udev makes their names a little after boot.
report() {
	until [[ -e /dev/virtio-ports/lab.report && -e /dev/virtio-ports/lab.logs ]]; do sleep 0.1; done
	exec 3>/dev/virtio-ports/lab.report
}

save_logs() {
	dmesg >"$logs/dmesg.log"
	journalctl -b --no-pager >"$logs/journal.log"
	ip -d link show >"$logs/link.log"
	cp -r /var/log/libvirt/qemu "$logs/" 2>/dev/null
	cp -r /etc/libvirt/qemu "$logs/domains" 2>/dev/null
	tar -cf /dev/virtio-ports/lab.logs -C "$logs" .
}

report
main
if ((failed)); then save_logs; fi
printf 'lab: %d passed, %d failed\n' "$passed" "$failed" >&3
