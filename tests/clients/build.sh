#!/usr/bin/env bash
# Prints the directory with the Go programs that are run against an API server, and builds them first when they are missing:
# `clients` tries client-go and controller-runtime, `clusterctl` is Cluster API's. The directory is in a cache outside the tree
# that is keyed by their sources. `--find` builds nothing and fails instead.
set -euo pipefail
cd "$(dirname "$0")"
key=$(cat go.mod go.sum ./*.go clusterctl/*.go | sha256sum | cut -c1-16)
programs=${XDG_CACHE_HOME:-$HOME/.cache}/capstan/clients/$key
[ -d "$programs" ] && { echo "$programs"; exit; }
[ "${1:-}" != --find ] || exit 1
mkdir -p "$(dirname "$programs")"
exec 7>"$programs.lock"
flock 7
rm -rf "$programs.new"
mkdir "$programs.new"
# With the flags of tests/kube/build.sh, so that what both need is compiled once.
CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$programs.new" . ./clusterctl >&2
mv "$programs.new" "$programs"
echo "$programs"
