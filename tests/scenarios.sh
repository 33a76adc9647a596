#!/usr/bin/env bash
# Runs test programs of the whole system, two at a time, the tests of each one after the other: they wait more than they work.
# Prints what each said when it has ended. Fails when one fails; all have been run then.
#   tests/scenarios.sh NAME…      names as in tests/tests
set -uo pipefail
cd "$(dirname "$0")/.."
logs=target/scenarios
rm -rf "$logs"
mkdir -p "$logs"
# Selected out of the whole workspace and not with -p, so that it is built with the features that `make fast` has built it with.
test=(cargo test --locked --release --workspace)
"${test[@]}" "${@/#/--test=}" --no-run || exit 1

run() {
  local began=$SECONDS
  # The cases of the differential suite are made to run beside each other.
  local threads=1
  [ "$1" != differential ] || threads=2
  if "${test[@]}" --test "$1" -- --test-threads=$threads >"$logs/$1" 2>&1; then
    cat "$logs/$1"
  else
    cat "$logs/$1"
    echo "$1" >>"$logs/failed"
  fi
  echo "$1: $((SECONDS - began)) s"
}
export -f run
export logs
declare -p test >"$logs/command"
printf '%s\n' "$@" | xargs -P 2 -I{} bash -c ". '$logs/command'; run {}"
[ ! -e "$logs/failed" ] || { echo "FAILED: $(tr '\n' ' ' <"$logs/failed")" >&2; exit 1; }
