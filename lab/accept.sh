# The acceptance story of the rack; sourced by lab.sh, which booted the machines. What Verbena says is checked against
# the kernels' own words (kernel.sh on the hosts), against what the guests see, and against the frames on the cables,
# which QEMU took outside of every kernel.
# shellcheck shell=bash disable=SC2154 # out, here and binary are lab.sh's

# The fast lane's VMs have no system: their VFs are taken from them and driven from the hosts. The full lane's VMs boot
# a guest. lane says which one runs.
lane=''

story() {
	set +e
	step join
	step commission
	for lane in $lanes; do
		step "${lane}_lane"
		step delete
	done
	printf 'lab: %d passed, %d failed\n' "$passed" "$failed"
}

join() {
	local host strikes=()
	login >"$out/cli.log" 2>&1
	is "login through the switch" 0 $?
	preflight before
	verbena apply -f "$here/manifests/rack/platform.yaml" >>"$out/cli.log" 2>&1
	is "apply of fabric, flavor, images, hosts, tenants and networks" 0 $?
	for host in host-a host-b; do
		strike "$host" no 180 joined
		strikes+=($!)
		enroll "$host"
	done
	wait "${strikes[@]}"
	for host in host-a host-b; do
		is "$host: its agent got its papers and was killed at once" yes "$(<"$out/strike.$host")"
	done
	for host in host-a host-b; do
		eventually 180 "$host is up" up field "host/$host" .status.state
		is "$host: the inventory is of a real kernel" "$(on "$host" uname -r) false" \
			"$(field "host/$host" '"\(.status.inventory.kernel) \(.status.inventory.simulated // false)"')"
	done
}

# preflight WHEN keeps what a host says of itself without any server.
preflight() {
	local host
	for host in host-a host-b; do
		on "$host" 'verbena preflight -o json' >"$out/preflight-$host-$1.json" 2>>"$out/cli.log"
		is "$host: preflight $1 commissioning says, by its exit code, that something is to be mended" 8 $?
	done
	faults host-a "$1" | while read -r line; do note "host-a $1: $line"; done
}

faults() { jq -r '.items[] | select(.severity == "error") | "\(.id) \(.object)"' "$out/preflight-$1-$2.json" 2>/dev/null; }

commission() {
	local host i
	for host in host-a host-b; do
		eventually 180 "$host: four VFs are parked" 4 parked "$host"
		for i in 0 1 2 3; do parked_in_kernel "$host" "$i"; done
	done
	preflight after
}

# full_lane boots one guest at a time on each host: emulated in an emulated machine, two would starve each other of time
# between two ticks of their clocks.
full_lane() {
	create guest red
	step guests_up red
	step create guest blue
	step guests_up blue
	step transfer red blue
	step strangers
	step frames red blue
	step agents_die
	step libvirt_restarts
	step host_reboots
}

fast_lane() {
	create empty red blue
	step take_vfs
	step transfer red
	step strangers
	step frames red
	step give_back
}

# take_vfs ends the VMs behind the agents' backs and drives their VFs from the hosts, which takes no guest to boot. What
# the agents set on the VFs stays, and is what is tested here.
take_vfs() {
	local vm host
	for host in host-a host-b; do on "$host" systemctl kill -s STOP verbena-agent; done
	for vm in red-a red-b blue-a; do
		on "host-${vm#*-}" "/mnt/rack.sh take ${vm%-*} $vm $(field "vm/$vm" '.status.vfs[0].index') $(address_of "$vm")" >>"$out/cli.log" 2>&1
		is "$vm: its VF is driven by the host" "$(field "vm/$vm" '.status.vfs[0].mac')" "$(guest "$vm" 20 'cat /sys/class/net/rdma0/address')"
	done
}

give_back() {
	local host vm
	for host in host-a host-b; do
		on "$host" '/mnt/rack.sh give_back; systemctl kill -s CONT verbena-agent' >>"$out/cli.log" 2>&1
	done
	for vm in red-a red-b blue-a blue-b; do
		eventually 240 "$vm runs again after its VF was taken" yes runs_again "$vm"
		attached "$vm"
	done
}

# create IMAGE TENANT… makes two VMs for each tenant, one on each host. On host-a the agent dies once a VF has its VLAN.
create() {
	local image=$1 tenant vm vms=() before
	shift
	for tenant in "$@"; do vms+=("$tenant-a" "$tenant-b"); done
	before=$(kernel host-a tagged)
	strike host-a "$before" 240 tagged
	for vm in "${vms[@]}"; do
		sed "s/IMAGE/$image/" "$here/manifests/rack/$vm.yaml" | verbena apply -f - >>"$out/cli.log" 2>&1
		is "apply of VM $vm" 0 $?
	done
	wait $!
	more "host-a: the agent was killed with a VF half programmed: VFs with a VLAN" "$before" "$(<"$out/strike.host-a")"
	for vm in "${vms[@]}"; do
		eventually 420 "VM $vm" Ready field "vm/$vm" .status.phase || note "it says: $(field "vm/$vm" .status.message)"
	done
	for vm in "${vms[@]}"; do attached "$vm"; done
}

# attached checks that what the API says of a running VM's VF is what kernel and QEMU have.
attached() {
	local vm=$1 host index qemu
	host=host-${vm#*-}
	index=$(field "vm/$vm" '.status.vfs[0].index')
	is "$vm: VF $index of $host as the API tells it" \
		"$(field "vm/$vm" '.status.vfs[0] | "mac \(.mac) vlan \(.vlan) qos \(.qos) spoofchk \(if .spoofCheck then "on" else "off" end) trust off"')" \
		"$(kernel "$host" vf_attributes "$index")"
	is "$vm: VLAN and priority are those of its network" "$(vlan "$vm") 3" "$(field "vm/$vm" '.status.vfs[0] | "\(.vlan) \(.qos)"')"
	qemu=$(kernel "$host" qemu_of_vm "${vm%-*}.$vm")
	is "$vm: the holder of its VFIO group is its QEMU" "$qemu" "$(kernel "$host" holder_of_vf "$index")"
	is "$vm: its memory is bound to the VF's NUMA node" bind:1 "$(kernel "$host" memory_policy "$qemu")"
}

vlan() { case $1 in red-*) echo 120 ;; *) echo 130 ;; esac }

guests_up() {
	local vm
	for vm in "$1-a" "$1-b"; do
		eventually 600 "$vm: the GID that its guest tells the host, by a port that is no network" "$(address_of "$vm")" told_gid "$vm"
	done
	for vm in "$1-a" "$1-b"; do
		eventually 120 "$vm: busy_poll, which the seed's tool sets" 50 guest "$vm" 60 'cat /proc/sys/net/core/busy_poll'
		is "$vm: the guest has the MAC of the API" "$(field "vm/$vm" '.status.vfs[0].mac')" "$(guest "$vm" 20 'cat /sys/class/net/rdma0/address')"
		is "$vm: the VF is on the guest's NUMA node of the plan" "$(field "vm/$vm" '.status.vfs[0].cell')" "$(guest "$vm" 20 'cat /sys/class/net/rdma0/device/numa_node')"
		is "$vm: its RDMA device has a node GUID" yes "$(guest "$vm" 20 'grep -qv 0000:0000:0000:0000 /sys/class/infiniband/rxe0/node_guid && echo yes')"
		is "$vm: the GID of its address is found by value, and is where the guest said" "$(field "vm/$vm" '.status.guest.ports[0].gidIndex')" "$(gid_index "$vm")"
	done
}

told_gid() { field "vm/$1" '.status.guest.ports[0].gid // "none"'; }

# gid_index prints where a guest's RoCE v2 GID of its IPv4 address stands, which is found by value: no index is fixed.
gid_index() {
	local hex
	# shellcheck disable=SC2046,SC2183 # four numbers
	hex=$(printf '%02x%02x:%02x%02x' $(address_of "$1" | tr . ' '))
	guest "$1" 60 "cd /sys/class/infiniband/rxe0/ports/1; for i in \$(grep -l ffff:$hex gids/? | cut -d/ -f2); do grep -l v2 gid_attrs/types/\$i; done" | sed -n 's|.*/||p' | head -n 1
}

address_of() { field "vm/$1" '.status.vfs[0].ip'; }

# transfer sends over RC queue pairs between the VMs of one tenant, across the hosts and the switch.
transfer() {
	local tenant
	for tenant in "$@"; do ping_pong "$tenant" 60; done
}

ping_pong() {
	local tenant=$1 rounds=$2 sent before server
	before=$(guest "$tenant-b" 20 "$(counter rcvd_pkts)")
	guest "$tenant-b" 150 "ibv_rc_pingpong -d rxe0 -g $(gid_index "$tenant-b") -s 4096 -n $rounds" >"$out/pingpong.$tenant" 2>&1 &
	server=$!
	sleep 8
	sent=$(guest "$tenant-a" 150 "ibv_rc_pingpong -d rxe0 -g $(gid_index "$tenant-a") -s 4096 -n $rounds $(address_of "$tenant-b")")
	wait "$server"
	is "$tenant: $rounds rounds of 4096 bytes by RC over RoCE v2" "$((2 * 4096 * rounds))" "$(sed -n 's/^\([0-9]*\) bytes in .*/\1/p' <<<"$sent")"
	note "$tenant: $(grep 'bytes in' <<<"$sent")"
	more "$tenant-b: RDMA packets that its device counted" "$before" "$(guest "$tenant-b" 20 "$(counter rcvd_pkts)")"
}

counter() { echo "cat /sys/class/infiniband/rxe0/ports/1/hw_counters/$1"; }

more() { is "$1: more than $2" yes "$([[ ${3:-0} -gt ${2:-0} ]] && echo yes || echo "${3:-nothing}")"; }

# strangers lets blue's guest try to reach red, on the same host and on the other: by an address of red's subnet, by
# frames that it tags itself, with red's MAC. Nobody of red may hear a word: no neighbour is learnt from it.
strangers() {
	local vm
	reach address '' 10.20.0.200
	reach vlan 'ip link add link rdma0 name out type vlan id 120; ip link set out up' 10.20.0.201
	reach mac "ip link add link rdma0 name out address $(field vm/red-a '.status.vfs[0].mac') type macvlan mode private; ip link set out up" 10.20.0.202
	guest blue-a 60 'ip link set rdma0 down; ip link set rdma0 address 02:00:00:00:66:66; ip link set rdma0 up' >"$out/stranger.own" 2>&1
	is "blue-a: its VF's MAC after it tried to change it" "$(field vm/blue-a '.status.vfs[0].mac')" "$(kernel host-a vf_mac "$(field vm/blue-a '.status.vfs[0].index')")"
	for vm in red-a red-b; do
		is "$vm: strangers among its neighbours" 0 "$(guest "$vm" 30 "ip neigh show dev rdma0 | grep -c '10[.]20[.]0[.]20[012].*lladdr'")"
	done
	guest blue-a 30 "ip address replace $(address_of blue-a)/24 dev rdma0" >/dev/null 2>&1
}

# reach NAME PREPARATION ADDRESS pings red's VMs from blue-a by interface out, or rdma0 if there is none.
reach() {
	guest blue-a 60 "${2:-true}; out=out; [ -e /sys/class/net/out ] || out=rdma0; ip address add $3/24 dev \$out; for red in $(address_of red-a) $(address_of red-b); do ip route replace \$red dev \$out src $3; busybox ping -c 2 -W 1 \$red; done; ip link del out; ip address del $3/24 dev rdma0" >"$out/stranger.$1" 2>&1
	is "blue-a's pings of red as a stranger by its $1: answers" "0 0" "$(sed -nE 's/.* ([0-9]+) packets received.*/\1/p' "$out/stranger.$1" | paste -sd' ')"
}

# frames reads what went over the cables.
frames() {
	local mac tenant
	frame_summary >"$out/frames"
	while read -r line; do note "frames: $line"; done <"$out/frames"
	is "RoCE v2 packets without a VLAN" 0 "$(roce 'not vlan and udp dst port 4791')"
	for tenant in "$@"; do
		more "RoCE v2 packets in $tenant's VLAN with the fabric's priority" 100 "$(tagged_roce "$(vlan "$tenant-a")" 3)"
		is "RoCE v2 packets in $tenant's VLAN with another" 0 "$(tagged_roce "$(vlan "$tenant-a")" '[0124567]')"
	done
	for mac in "$(field vm/blue-a '.status.vfs[0].mac')" "$(field vm/blue-b '.status.vfs[0].mac')"; do
		is "frames of blue's $mac in red's VLAN" 0 "$(roce "vlan 120 and ether src $mac")"
	done
	more "frames in which blue asks for red's addresses, in blue's own VLAN" 0 "$(roce 'vlan 130 and (arp or vlan) and not net 10.30.0.0/24')"
	is "frames in red's VLAN with an address that blue took" 0 "$(roce 'vlan 120 and (ether src 02:00:00:00:66:66 or src host 10.20.0.200 or src host 10.20.0.201 or src host 10.20.0.202)')"
	is "frames in red's VLAN with a second tag" 0 "$(roce 'vlan 120 and vlan')"
	frames_of a 'vlan 130 and not udp' | sed -E 's/^[0-9:.]+ //; s/, length [0-9]+//g; s/, ethertype [^:]*:/:/' | sort | uniq -c | sort -rn >>"$out/frames"
}

# agents_die kills both agents with SIGKILL while a transfer runs: neither VMs nor VFs may notice.
agents_die() {
	local before after host
	before=$(for host in host-a host-b; do kernel "$host" vm_state; done)
	for host in host-a host-b; do on "$host" systemctl kill -s KILL verbena-agent; done
	ping_pong red 40
	for host in host-a host-b; do eventually 120 "$host is up again" up field "host/$host" .status.state; done
	after=$(for host in host-a host-b; do kernel "$host" vm_state; done)
	is "QEMUs, VFIO groups and VF attributes" "$before" "$after"
}

libvirt_restarts() {
	local before
	before=$(kernel host-a vm_state)
	on host-a 'systemctl restart libvirtd.service'
	is "host-a: libvirtd restarted" 0 $?
	eventually 120 "host-a: libvirt answers" 2 running_domains host-a
	eventually 120 "red-a" Ready field vm/red-a .status.phase
	is "host-a: QEMUs, VFIO groups and VF attributes" "$before" "$(kernel host-a vm_state)"
}

running_domains() { on "$1" 'virsh -q -c qemu:///system list --name' | grep -c .; }

# host_reboots: the kernel forgets VFs, drivers and attributes; the agent must have them back before a VM starts.
host_reboots() {
	local boot vm seen
	seen=$(field vm/red-b .status.guest.seen)
	boot=$(on host-b cat /proc/sys/kernel/random/boot_id)
	is "host-b: domains that libvirt would start by itself" 0 "$(on host-b 'virsh -q -c qemu:///system list --all --autostart --name' | grep -c .)"
	on host-b 'systemctl reboot --force --force' 2>/dev/null
	ssh -F "$out/ssh_config" -O exit host-b 2>/dev/null
	eventually 400 "host-b: another boot" yes booted_since host-b "$boot"
	for vm in red-b blue-b; do
		eventually 420 "$vm runs again" yes runs_again "$vm"
		attached "$vm"
	done
	eventually 600 "red-b: its guest, of a new boot, tells of itself again" yes told_since red-b "$seen"
	ping_pong red 40
}

booted_since() {
	local now
	now=$(on "$1" cat /proc/sys/kernel/random/boot_id 2>/dev/null)
	[[ -n $now && $now != "$2" ]] && echo yes
}

told_since() {
	local now
	now=$(field "vm/$1" '.status.guest.seen // ""')
	[[ $now > $2 ]] && echo yes
}

runs_again() { [[ $(kernel "host-${1#*-}" qemu_of_vm "${1%-*}.$1") != none && $(field "vm/$1" .status.phase) == Ready ]] && echo yes; }

# delete takes all VMs; on host-b the agent dies once the first QEMU is gone.
delete() {
	local host i tenant
	strike host-b "$(kernel host-b qemus)" 300 qemus
	for tenant in red blue; do
		verbena delete --yes --tenant "$tenant" "vm/$tenant-a" "vm/$tenant-b" >>"$out/cli.log" 2>&1
		is "delete of $tenant's VMs" 0 $?
	done
	wait $!
	for host in host-a host-b; do
		eventually 300 "$host: all VFs are back in the pool" 4 parked "$host"
		is "$host: QEMUs" 0 "$(kernel "$host" qemus)"
		for i in 0 1 2 3; do parked_in_kernel "$host" "$i"; done
	done
}

parked_in_kernel() {
	is "$1: VF $2 is parked" "vfio-pci vfio-pci mac unicast vlan 0 qos 0 spoofchk on trust off rates none holder none" "$(kernel "$1" parked "$2")"
}

# strike HOST BEFORE SECONDS COMMAND… kills a host's agent with SIGKILL, in the background, once COMMAND of kernel.sh no longer prints BEFORE.
strike() {
	local host=$1
	shift
	on "$host" /mnt/rack.sh strike "$@" >"$out/strike.$host" &
	eventually 30 "$host: ready to kill its agent" yes on "$host" 'test -e /run/strike && echo yes' >/dev/null
}

kernel() { on "$1" "/mnt/kernel.sh ${*:2}"; }
# field KIND/NAME JQ prints a field of an object as the API tells it; a VM's name says its tenant.
field() {
	local tenant=red
	[[ $1 != vm/blue-* ]] || tenant=blue
	verbena get "$1" --tenant "$tenant" -o json --jq "$2" 2>>"$out/cli.log"
}
parked() { field "host/$1" '[.status.inventory.pfs[0].vfs[]? | select(.state == "parked")] | length'; }
# guest VM SECONDS COMMAND runs a command in a VM by its serial console, or in the fast lane where its VF is.
guest() {
	local vm=$1 apart=''
	if [[ $lane == full ]]; then
		on "host-${vm#*-}" "/mnt/kernel.sh console ${vm%-*}.$vm $2 $(printf %q "$3")"
		return
	fi
	[[ $vm != blue-* ]] || apart='ip netns exec blue'
	on "host-${vm#*-}" "$apart timeout $2 bash -c $(printf %q "$3")"
}

# roce FILTER counts frames on both cables that a tcpdump filter finds.
roce() { for cable in a b; do frames_of "$cable" "$1"; done | wc -l; }
tagged_roce() { for cable in a b; do frames_of "$cable" "vlan $1 and udp dst port 4791"; done | grep -c "vlan $1, p $2,"; }
frames_of() { chroot "$cache/root" tcpdump -enr - "$2" <"$out/host-$1.pcap" 2>/dev/null; }
frame_summary() {
	for cable in a b; do frames_of "$cable" 'vlan and udp dst port 4791'; done |
		sed -nE 's/.* ([0-9a-f:]{17}) > .*vlan ([0-9]+), p ([0-9]+).*/from \1 in VLAN \2 with priority \3/p' | sort | uniq -c
}
