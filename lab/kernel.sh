#!/bin/bash
# What a hypervisor's kernel has, read by ip link, /sys and /proc and by nothing of Verbena: the evidence of the lab.
# Sourced by inhost.sh, and run on a host of the rack as: kernel.sh FUNCTION ARGUMENT…
readonly pf=/sys/bus/pci/devices/0000:81:00.0 # the emulated 82576

iommu_group() { link "$pf/virtfn$1/iommu_group"; }
pci_address() { link "$pf/virtfn$1"; }
link() { basename "$(readlink "$1")"; }

vf_lines() { ip link show dev "$(ls "$pf/net")" | grep -E '^ +vf '; }
vf_line() { vf_lines | grep -E "^ +vf $1 "; }
vf_mac() { vf_line "$1" | grep -oE -m 1 '([0-9a-f]{2}:){5}[0-9a-f]{2}' | head -n 1; }
tagged() { vf_lines | grep -c 'vlan '; }

# vf_attributes prints a VF's attributes in one form; ip leaves out what is 0.
vf_attributes() {
	local line
	line=$(vf_line "$1")
	printf 'mac %s vlan %s qos %s spoofchk %s trust %s\n' "$(vf_mac "$1")" \
		"$(word 'vlan ([0-9]+)' "$line" 0)" "$(word 'qos ([0-9]+)' "$line" 0)" \
		"$(word 'spoof checking (on|off)' "$line" unknown)" "$(word 'trust (on|off)' "$line" unknown)"
}

word() { if [[ $2 =~ $1 ]]; then echo "${BASH_REMATCH[1]}"; else echo "$3"; fi; }

# holders prints "GROUP PID" for each process that has a VFIO group open.
holders() {
	find /proc/[0-9]*/fd -lname '/dev/vfio/[0-9]*' -printf '%l %p\n' 2>/dev/null |
		sed -E 's|/dev/vfio/([0-9]+) /proc/([0-9]+)/.*|\1 \2|' | sort -u
}

holder() { holders | awk -v group="$1" '$1 == group {print $2; found = 1} END {if (!found) print "none"}'; }

qemu_of_vm() { grep -lsz "^guest=$1," /proc/[0-9]*/cmdline | cut -d/ -f3 | grep . || echo none; }

vfs_of_qemu() { tr '\0' '\n' <"/proc/$1/cmdline" | grep -oE '"?host"?[:=]"?[0-9a-f:.]{12}' | grep -oE '[0-9a-f:.]{12}$'; }

memory_policy() { grep -oE 'bind:[0-9,-]+' "/proc/$1/numa_maps" | sort | uniq -c | sort -rn | awk 'NR == 1 {print $2}'; }

holder_of_vf() { holder "$(iommu_group "$1")"; }

qemus() { pgrep -c qemu-system; }

joined() { if [[ -s /var/lib/verbena/agent/identity ]]; then echo yes; else echo no; fi; }

# vm_state prints what must not change under VMs that run: their processes, what these hold, and the VFs' attributes.
vm_state() {
	holders
	vf_lines
}

# parked prints all that tells whether a VF waits for an owner in the state that the next one shall find.
parked() {
	local vf=$pf/virtfn$1
	printf '%s %s %s rates %s holder %s\n' "$(link "$vf/driver")" "$(<"$vf/driver_override")" \
		"$(vf_attributes "$1" | sed -E 's/mac .[26ae]:[0-9a-f:]+/mac unicast/')" \
		"$(word '((min|max)_tx_rate [^,]*)' "$(vf_line "$1")" none)" "$(holder_of_vf "$1")"
}

# console VM SECONDS COMMAND types a command into a guest's serial console and prints what it answers. What an earlier
# call may have left running there ends by ^C.
console() {
	local pty line mark=done-$RANDOM$RANDOM found=1
	pty=$(virsh -q -c qemu:///system ttyconsole "$1") || return
	exec 5<>"$pty"
	stty -F "$pty" raw -echo
	printf '\003' >&5
	while read -r -t 0.2 -u 5 line; do :; done # what was said before
	printf '%s; echo "%s-"$?\n' "$3" "$mark" >&5
	while read -r -t "$2" -u 5 line; do
		line=${line%$'\r'}
		if [[ $line =~ ^(.*)$mark-([0-9]+)$ ]]; then
			[[ -z ${BASH_REMATCH[1]} ]] || echo "${BASH_REMATCH[1]}"
			found=${BASH_REMATCH[2]}
			break
		fi
		[[ $line == *"$mark"* || -z $line ]] || echo "$line"
	done
	exec 5>&-
	return "$found"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then "$@"; fi
