# Words that the lab's scripts share; to be sourced.
# shellcheck shell=bash

say() { printf 'lab: %s\n' "$*" >&2; }

# die MESSAGE [FIX]
die() {
	printf 'lab: %s\n' "$1" >&2
	if [[ -n ${2:-} ]]; then printf 'lab: %s\n' "$2" >&2; fi
	exit 1
}

cache_folder() { echo "${VERBENA_LAB_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/verbena/lab}"; }

need_root() {
	((EUID == 0)) || die "$1 needs root" "run it again with sudo"
}

# need_tools COMMAND:PACKAGE… installs what is missing by apt and says so.
need_tools() {
	local pair missing=()
	for pair in "$@"; do
		command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
	done
	((${#missing[@]})) || return 0
	command -v apt-get >/dev/null || die "this machine lacks ${missing[*]} and has no apt-get" "install them and run again"
	apt_install "${missing[@]}"
}

# need_file FILE PACKAGE
need_file() {
	[[ -e $1 ]] || apt_install "$2"
	[[ -e $1 ]] || die "package $2 has no $1" "install a release of $2 that has it"
}

apt_install() {
	local log
	log=$(mktemp)
	say "installing $* by apt-get"
	# The lists of a fresh machine may be empty or old: refresh them only when the install does not go.
	if ! DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >"$log" 2>&1 &&
		! { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"; } >"$log" 2>&1; then
		tail -n 15 "$log" >&2
		rm -f "$log"
		die "apt-get did not install $*" "install them by hand and run again"
	fi
	rm -f "$log"
}

# need_disk FOLDER GIB
need_disk() {
	local free
	free=$(df --output=avail -BG "$1" | tail -n 1 | tr -dc 0-9)
	((free >= $2)) || die "$1 has $free GiB free, the lab needs $2 GiB" "free some, or set VERBENA_LAB_CACHE to a folder elsewhere"
}

# need_memory MIB
need_memory() {
	local free
	free=$(awk '/^MemAvailable:/ {print int($2 / 1024)}' /proc/meminfo)
	((free >= $1)) || die "$free MiB of memory are available, the lab needs $1 MiB" "end other programs or use a larger machine"
}
