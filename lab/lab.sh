#!/bin/bash
# A rack of emulated machines: two hypervisors and the switch between them, with server, agents and libvirt inside.
#
#   lab.sh up     boots it and stays until Ctrl-C; prints how to reach each machine
#   lab.sh test   boots it, runs the acceptance story of accept.sh and ends it
#
#   VERBENA_LAB_CACHE  where the built root is kept (default ${XDG_CACHE_HOME:-~/.cache}/verbena/lab)
#   VERBENA_LAB_OUT    where a run leaves its report, packets and logs (default lab/out/rack)
#   VERBENA_LAB_ACCEL  kvm or tcg (default: kvm where a probe boot works, else tcg)
#   VERBENA_LAB_LANES  what `test` runs: fast, full or "fast full" (default both)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=common.sh
. "$here/common.sh"
# shellcheck source=check.sh
. "$here/check.sh"

out=${VERBENA_LAB_OUT:-$here/out/rack}
lanes=${VERBENA_LAB_LANES:-fast full}
binary=$here/../bin/verbena
readonly machines=(switch host-a host-b)
builder='' cache='' pids=()

main() {
	local lane
	for lane in $lanes; do [[ $lane =~ ^(fast|full)$ ]] || die "VERBENA_LAB_LANES knows the lanes fast and full, not $lane"; done
	case ${1:-} in
	up | test) ;;
	*) die "lab.sh takes up or test" "make lab, or make lab-test" ;;
	esac
	check_machine
	trap clean_up EXIT
	trap 'exit 130' INT TERM
	setpriv --pdeathsig KILL "$here/root.sh" >"$out/root" &
	builder=$!
	wait "$builder" || exit
	builder=''
	cache=$(<"$out/root")
	exec 7<"$cache/complete"
	flock -s 7 # so that no other run removes the root as outdated
	boot
	if [[ $1 == up ]]; then stay; else accept; fi
}

check_machine() {
	need_root "the lab"
	[[ $(uname -m) == x86_64 ]] || die "the lab emulates x86_64 hosts with a QEMU for x86_64; this machine is $(uname -m)"
	need_tools mke2fs:e2fsprogs flock:util-linux unshare:util-linux setpriv:util-linux ssh:openssh-client ss:iproute2
	need_memory 8192
	unshare --mount true 2>/dev/null || die "this machine lets root make no mounts" "in a container, run it with --privileged"
	[[ -x $binary ]] || die "there is no bin/verbena" "make build"
	if ldd "$binary" >/dev/null 2>&1; then die "bin/verbena is linked dynamically; it must run in hosts of another release" "make build"; fi
	mkdir -p "$out"
	need_disk "$out" 3
	exec 8>"$out/lock"
	flock -n 8 || die "another run uses $out" "wait for it, or set VERBENA_LAB_OUT to another folder"
}

boot() {
	local accel machine
	rm -rf "$out"/{disk,disk.img,logs} "$out"/*.{pcap,console,cable,port,log}
	accel=${VERBENA_LAB_ACCEL:-$("$here/probe.sh" "$cache")}
	make_disk
	free_ports
	say "booting a switch and two hypervisors ($accel)"
	for machine in "${machines[@]}"; do
		"$here/machine.sh" "$cache" "$out" "$machine" "$accel" </dev/null >"$out/$machine.log" 2>&1 7<&- 8<&- &
		pids+=($!)
	done
	ssh_config
	for machine in "${machines[@]}"; do await "$machine"; done
	say "all machines are up after $SECONDS s"
}

make_disk() {
	local disk=$out/disk
	mkdir -p "$disk"
	cp "$binary" "$binary-guest" "$here"/{rack,kernel}.sh "$cache/guest.img" "$disk"
	truncate -s 1M "$disk/empty.img"
	truncate -s "$(($(du -sm --apparent-size "$disk" | cut -f1) + 24))M" "$out/disk.img"
	mke2fs -q -t ext4 -O ^has_journal -m 0 -d "$disk" "$out/disk.img"
	rm -rf "$disk"
}

# free_ports picks ports of the loopback that nobody listens on, one for each machine's ssh and one for the server.
free_ports() {
	local port=$((20000 + RANDOM % 20000)) name
	for name in "${machines[@]}" server; do
		while ss -Htln "sport = :$port" | grep -q .; do ((++port)); done
		echo "$port" >"$out/$name.port"
		((++port))
	done
}

ssh_config() {
	local machine
	install -m 600 "$cache/key" "$out/key"
	for machine in "${machines[@]}"; do
		printf 'Host %s\n\tPort %s\n' "$machine" "$(<"$out/$machine.port")"
	done >"$out/ssh_config"
	cat >>"$out/ssh_config" <<-CONFIG
		Host *
			HostName 127.0.0.1
			User root
			IdentityFile $out/key
			IdentitiesOnly yes
			StrictHostKeyChecking no
			UserKnownHostsFile /dev/null
			GlobalKnownHostsFile /dev/null
			LogLevel ERROR
			ConnectTimeout 20
			ServerAliveInterval 20
			ServerAliveCountMax 6
			ControlMaster auto
			ControlPath $out/%n.ssh
			ControlPersist 60
	CONFIG
}

# on MACHINE COMMAND… runs a command on a machine of the rack.
on() {
	local machine=$1
	shift
	ssh -F "$out/ssh_config" "$machine" "$*" </dev/null
}

# await MACHINE waits until its part is played: rack.sh says so in /run/rack.
await() {
	local deadline=$((SECONDS + 600)) i
	until [[ $(on "$1" cat /run/rack 2>/dev/null) == up ]]; do
		for i in "${!machines[@]}"; do
			[[ ${machines[i]} != "$1" ]] || kill -0 "${pids[i]}" 2>/dev/null || {
				tail -n 15 "$out/$1.log" "$out/$1.console" >&2
				die "machine $1 ended while booting" "its console is $out/$1.console"
			}
		done
		((SECONDS < deadline)) || die "machine $1 did not come up in 600 s" "its console is $out/$1.console"
		sleep 1
	done
}

# stay gives people a cloud that is ready: both hosts joined, their VFs commissioned, two tenants with a network each.
stay() {
	local host
	login
	verbena apply -f "$here/manifests/rack/platform.yaml" >&2
	for host in host-a host-b; do enroll "$host"; done
	cat <<-TEXT

		The rack is up. In another shell:

		  export VERBENA_CONFIG=$out/config PATH=$(realpath "$here/../bin"):\$PATH
		  verbena get hosts                       # the server on the switch, as admin
		  sed s/IMAGE/guest/ $here/manifests/rack/red-a.yaml | verbena apply -f -
		  verbena get vm/red-a --tenant red -o wide
		  ssh -F $out/ssh_config host-a          # or host-b, switch
		  ssh -tF $out/ssh_config host-a virsh console red.red-a     # a VM's console; stty echo shows what you type, ^] leaves

		VMs: red-a, red-b, blue-a, blue-b, in lab/manifests/rack; an emulated guest takes one to four minutes to boot.
		Frames on the hosts' RoCE cables: $out/host-a.pcap, $out/host-b.pcap
		Ctrl-C ends all machines.
	TEXT
	wait "${pids[@]}"
}

verbena() { "$binary" "$@"; }

# enroll HOST starts the agent of a host with a join token.
enroll() {
	verbena host join-token "$1" 2>>"$out/cli.log" | ssh -F "$out/ssh_config" "$1" 'umask 077; cat >/var/lib/verbena/join-token'
	on "$1" /mnt/rack.sh start_agent
}

login() {
	export VERBENA_CONFIG=$out/config
	rm -rf "$out/config" "$out/data" # of an earlier rack
	mkdir -p "$out/data"
	local deadline=$((SECONDS + 60))
	until on switch test -s /var/lib/verbena/server/bootstrap-token; do
		((SECONDS < deadline)) || die "the server made no bootstrap token in 60 s" "ssh -F $out/ssh_config switch journalctl -u verbena-server"
		sleep 1
	done
	on switch tar -C /var/lib/verbena/server -cf - bootstrap-token ca.crt | tar -C "$out/data" -xf -
	"$binary" login "https://127.0.0.1:$(<"$out/server.port")" --bootstrap "$out/data" >&2
}

accept() {
	# shellcheck source=accept.sh
	. "$here/accept.sh"
	exec 3>&1
	story 2>&1 | tee "$out/report" >&2
	grep -q '^lab: [0-9]* passed, 0 failed$' "$out/report" || {
		keep_logs
		die "not as it should be: see the FAIL lines above" "logs are in $out/logs, frames in $out/host-*.pcap"
	}
}

keep_logs() {
	local machine
	for machine in "${machines[@]}"; do
		mkdir -p "$out/logs/$machine"
		on "$machine" 'journalctl -b --no-pager; dmesg; ip -d link show' >"$out/logs/$machine/journal" 2>/dev/null || true
		on "$machine" 'tar -cf - -C /var/log/libvirt qemu' 2>/dev/null | tar -xf - -C "$out/logs/$machine" 2>/dev/null || true
	done
}

clean_up() {
	local pid
	for pid in $builder "${pids[@]}"; do
		kill -KILL "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
	done
	for pid in "${machines[@]}"; do ssh -F "$out/ssh_config" -O exit "$pid" 2>/dev/null || true; done
	rm -f "$out"/disk.img "$out"/*.cable
}

say() { printf '%5d s  %s\n' "$SECONDS" "$*" >&2; }

main "$@"
