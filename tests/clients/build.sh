#!/usr/bin/env bash
# Prints the program that tries client-go and controller-runtime (tests/clients), and builds it first when it is missing: into
# a cache outside the tree that is keyed by its sources. `--find` prints nothing and fails instead.
set -euo pipefail
cd "$(dirname "$0")"
key=$(cat go.mod go.sum ./*.go | sha256sum | cut -c1-16)
program=${XDG_CACHE_HOME:-$HOME/.cache}/capstan/clients/$key
[ -x "$program" ] && { echo "$program"; exit; }
[ "${1:-}" != --find ] || exit 1
mkdir -p "$(dirname "$program")"
exec 7>"$program.lock"
flock 7
# With the flags of tests/kube/build.sh, so that what both need is compiled once.
CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$program.new" . >&2
mv "$program.new" "$program"
echo "$program"
