# How the lab's stories check; to be sourced by a script that has say().
# shellcheck shell=bash
passed=0 failed=0

# step runs one part of the story; what comes after a broken part would only repeat that it is broken.
step() {
	((failed == 0)) || return
	note "$*"
	"$@"
}

# eventually SECONDS TEXT EXPECTED COMMAND… waits until COMMAND prints EXPECTED.
eventually() {
	local limit=$1 text=$2 expected=$3 began=$SECONDS seen
	shift 3
	while seen=$("$@") || true; do
		if [[ $seen == "$expected" ]] || ((SECONDS - began >= limit)); then break; fi
		sleep 0.5
	done
	is "$text" "$expected" "$seen" "after $((SECONDS - began)) s"
}

# is TEXT EXPECTED SEEN [MORE] is one check.
is() {
	if [[ $3 == "$2" ]]; then
		((++passed))
		say "ok: $1: ${3//$'\n'/; } ${4:-}"
	else
		((++failed))
		say "FAIL: $1: seen: '$3' expected: '$2' ${4:-}"
		return 1
	fi
}

note() { say "-- $*"; }
