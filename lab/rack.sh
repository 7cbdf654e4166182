#!/bin/bash
# Runs inside each machine of the rack at every boot, from the read-only disk at /mnt, and gives it its part: the
# switch bridges the hosts' RoCE cables and runs the server; a host runs the agent.
set -uo pipefail
readonly lab=/mnt state=/var/lib/verbena
name=$(sed -E 's/.*lab\.role=([^ ]+).*/\1/' /proc/cmdline)

main() {
	install -d "$state"
	install "$lab"/verbena{,-guest} /usr/local/bin
	nic "$(mac 0 1)" ssh
	address ssh 10.0.2.15/24
	if [[ $name == switch ]]; then switch; else host; fi
	echo up >/run/rack
}

# mac CABLE NUMBER is the address that machine.sh gave this machine's NIC at a cable.
mac() { printf '52:54:00:%02x:%02x:%02x' "$(machine)" "$1" "$2"; }
machine() { case $name in host-*) echo $((16#${name#host-})) ;; *) echo 0 ;; esac }

# nic MAC NAME names an interface, so that nothing here depends on how udev names it. An emulated kernel may take a
# while to find it, and udev may give it a name of its own in between, so it is looked up again until it has this one.
nic() {
	local device deadline=$((SECONDS + 120))
	until device=$(netdev "$1") && [[ $device == "$2" ]]; do
		((SECONDS < deadline)) || { echo "there is no NIC $1 to name $2" >&2 && exit 1; }
		if [[ -n $device ]] && udevadm settle; then
			ip link set "$device" down
			ip link set "$device" name "$2"
		fi
		sleep 0.2
	done
	ip link set "$2" up
}

# netdev MAC prints the name of the NIC with this address; VFs are none.
netdev() {
	local device
	for device in /sys/class/net/*; do
		if [[ $(<"$device/address") == "$1" && -e $device/device && ! -e $device/device/physfn ]]; then
			basename "$device"
			return
		fi
	done
	return 1
}

address() { ip address replace "$2" dev "$1"; }

switch() {
	local letter
	ip link add mgmt type bridge
	# Nothing untagged passes: a VLAN is a tenant's network, and no frame is without one.
	ip link add roce type bridge vlan_filtering 1 vlan_default_pvid 0
	for letter in a b; do
		nic "$(mac 1 "0x0$letter")" "mgmt-$letter"
		nic "$(mac 2 "0x0$letter")" "roce-$letter"
		ip link set "mgmt-$letter" master mgmt
		ip link set "roce-$letter" master roce
		bridge vlan add dev "roce-$letter" vid 100-199
		tc qdisc replace dev "roce-$letter" root red limit 400000 min 30000 max 90000 avpkt 1000 burst 55 ecn bandwidth 1gbit
	done
	ip link set mgmt up
	ip link set roce up
	address mgmt 10.99.0.1/24
	count
	unit verbena-server "verbena server --data $state/server --listen 0.0.0.0:7443 --name 10.99.0.1 --name 127.0.0.1"
}

# count makes the switch count RoCE v2 packets by VLAN and priority, as a real one does.
count() {
	nft -f - <<-'NFT'
		table bridge roce {
			set seen {
				typeof ether saddr . vlan id . vlan pcp
				flags dynamic
				counter
			}
			chain forward {
				type filter hook forward priority 0;
				vlan id 1-4094 udp dport 4791 update @seen { ether saddr . vlan id . vlan pcp }
			}
		}
	NFT
}

host() {
	nic "$(mac 1 1)" mgmt
	nic "$(mac 2 1)" roce0
	address mgmt "10.99.0.1$(machine)/24"
	if [[ -e $state/agent || -e $state/join-token ]]; then start_agent; fi
}

start_agent() {
	unit verbena-agent "verbena agent --server https://10.99.0.1:7443 --state $state/agent --join-token $state/join-token"
}

# unit NAME COMMAND runs a command as a service that comes back when it dies.
unit() {
	systemctl is-active -q "$1" && return
	systemctl reset-failed "$1" 2>/dev/null
	# shellcheck disable=SC2086 # COMMAND is words
	systemd-run -q --unit "$1" -p Restart=always -p RestartSec=1 -p KillMode=process -E HOME=/root -E LC_ALL=C.UTF-8 /usr/local/bin/$2
}

# strike BEFORE SECONDS COMMAND… kills the agent with SIGKILL once COMMAND of kernel.sh prints something other than BEFORE,
# and prints that.
strike() {
	local before=$1 deadline=$((SECONDS + $2)) seen
	shift 2
	# shellcheck source=kernel.sh
	. "$lab/kernel.sh"
	touch /run/strike
	while seen=$("$@") || true; [[ $seen == "$before" ]] && ((SECONDS < deadline)); do sleep 0.02; done
	systemctl kill -s KILL verbena-agent
	rm -f /run/strike
	echo "$seen"
}

# take TENANT VM INDEX ADDRESS ends a VM and gives its VF to the host, which drives it as interface rdma0 with soft RoCE
# on it. A second tenant's is in a network namespace of its own, where soft RoCE of this kernel does not work.
take() {
	local vf=/sys/bus/pci/devices/0000:81:00.0/virtfn$3 device apart=()
	modprobe -a igbvf rdma_rxe ib_uverbs 8021q macvlan
	virsh -q -c qemu:///system destroy "$1.$2" || return
	driver "$vf" igbvf || return
	until device=$(ls "$vf/net" 2>/dev/null) && [[ -n $device ]] && udevadm settle; do sleep 0.1; done
	device=$(ls "$vf/net")
	if [[ $1 != red ]]; then
		ip netns add "$1"
		ip link set "$device" netns "$1"
		apart=(ip netns exec "$1")
	fi
	"${apart[@]}" sysctl -qw net.ipv6.conf.all.disable_ipv6=1
	"${apart[@]}" ip link set "$device" down
	"${apart[@]}" ip link set "$device" name rdma0
	"${apart[@]}" ip link set rdma0 up
	"${apart[@]}" ip address add "$4/24" dev rdma0
	[[ $1 != red ]] || rdma link add rxe0 type rxe netdev rdma0
}

# give_back returns what was taken to vfio-pci.
give_back() {
	local vf
	rdma link delete rxe0 2>/dev/null
	ip netns delete blue 2>/dev/null
	for vf in /sys/bus/pci/devices/0000:81:00.0/virtfn*; do
		[[ $(readlink "$vf/driver") != */igbvf ]] || driver "$vf" vfio-pci
	done
}

# driver VF NAME binds a VF to a driver and to no other.
driver() {
	local address
	address=$(basename "$(readlink -f "$1")")
	echo "$2" >"$1/driver_override"
	[[ ! -e $1/driver ]] || echo "$address" >"$1/driver/unbind"
	echo "$address" >/sys/bus/pci/drivers_probe
}

if (($#)); then "$@"; else main; fi
