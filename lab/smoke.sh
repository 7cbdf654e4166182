#!/bin/bash
# The main job on a real kernel: boots one emulated hypervisor, runs server and agent in it, and checks from the
# outside of Verbena (ip link, sysfs, /proc) what they say they did. README.md tells what is checked and what is not.
#
#   VERBENA_LAB_CACHE    where the built root is kept (default ${XDG_CACHE_HOME:-~/.cache}/verbena/lab)
#   VERBENA_LAB_OUT      where a run leaves its report and logs (default lab/out)
#   VERBENA_LAB_ACCEL    kvm or tcg (default: kvm where a probe boot works, else tcg)
#   VERBENA_LAB_TIMEOUT  seconds from power-on after which the run is given up (default 600)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=common.sh
. "$here/common.sh"

out=${VERBENA_LAB_OUT:-$here/out}
limit=${VERBENA_LAB_TIMEOUT:-600}
binary=$here/../bin/verbena
builder='' host='' follower=''

main() {
	local cache accel
	check_machine
	trap clean_up EXIT
	trap 'exit 130' INT TERM
	setpriv --pdeathsig KILL "$here/root.sh" >"$out/root" &
	builder=$!
	wait "$builder" || exit # wait, unlike a foreground program, ends with a signal to this script
	builder=''
	cache=$(<"$out/root")
	exec 7<"$cache/complete"
	flock -s 7 # so that no other run removes the root as outdated
	accel=${VERBENA_LAB_ACCEL:-$("$here/probe.sh" "$cache")}
	make_disk
	say "booting an emulated hypervisor ($accel)"
	"$here/host.sh" "$cache" "$out" "$accel" </dev/null >"$out/qemu.log" 2>&1 &
	host=$!
	follow
	verdict
}

check_machine() {
	need_root "the lab"
	[[ $(uname -m) == x86_64 ]] || die "the lab emulates an x86_64 host with a QEMU for x86_64; this machine is $(uname -m)"
	need_tools mke2fs:e2fsprogs flock:util-linux unshare:util-linux setpriv:util-linux
	need_memory 3584
	unshare --mount true 2>/dev/null || die "this machine lets root make no mounts" "in a container, run it with --privileged"
	[[ -x $binary ]] || die "there is no bin/verbena" "make build"
	if ldd "$binary" >/dev/null 2>&1; then die "bin/verbena is linked dynamically; it must run in a host of another release" "make build"; fi
	mkdir -p "$out"
	need_disk "$out" 2
	exec 8>"$out/lock"
	flock -n 8 || die "another run uses $out" "wait for it, or set VERBENA_LAB_OUT to another folder"
}

# make_disk makes the host's second disk: the program, what it is to do, and an image for its VMs.
make_disk() {
	local disk=$out/disk
	rm -rf "$out"/{disk,disk.img,report,logs.tar,logs,console,qemu.log}
	mkdir -p "$disk"
	cp "$binary" "$here"/{inhost,kernel,check}.sh "$disk"
	cp -r "$here/manifests" "$disk"
	truncate -s 1M "$disk/empty.img"
	truncate -s "$(($(du -sm "$disk" | cut -f1) + 16))M" "$out/disk.img"
	mke2fs -q -t ext4 -O ^has_journal -m 0 -d "$disk" "$out/disk.img"
	rm -rf "$disk"
	: >"$out/report"
}

# follow prints what the host reports until it powers off.
follow() {
	local began=$SECONDS status=0
	timeout "$limit" tail -n +1 -f --pid="$host" "$out/report" &
	follower=$!
	wait "$follower" || status=$?
	follower=''
	if ((status == 124)); then
		keep_logs
		die "given up after $limit s; the last line above is where it hangs" "a slow machine may need VERBENA_LAB_TIMEOUT=$((limit * 2)); logs are in $out"
	fi
	wait "$host" || true
	host=''
	say "the host was up for $((SECONDS - began)) s"
}

verdict() {
	if grep -q '^lab: [0-9]* passed, 0 failed$' "$out/report"; then
		rm -f "$out/disk.img" "$out/logs.tar"
		return
	fi
	keep_logs
	if ! grep -q '^lab: ' "$out/report"; then
		tail -n 15 "$out/qemu.log" "$out/console" >&2
		die "the host went away before the end" "its console and logs are in $out"
	fi
	die "not as it should be: see the FAIL lines above" "the logs of server, agent, kernel and libvirt are in $out/logs"
}

keep_logs() {
	rm -f "$out/disk.img"
	if [[ -s $out/logs.tar ]]; then
		mkdir -p "$out/logs"
		tar -xf "$out/logs.tar" -C "$out/logs" 2>/dev/null || true # cut short when the host died while writing
	fi
}

clean_up() {
	local pid
	for pid in $builder $follower $host; do
		kill -KILL "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
	done
}

main
