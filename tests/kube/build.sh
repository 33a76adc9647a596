#!/usr/bin/env bash
# Prints the directory with kube-apiserver, kube-controller-manager and etcd, and builds them there first when they are
# missing: KUBEBUILDER_ASSETS where that is set (envtest's convention), else a cache outside the tree that is keyed by
# what the modules pin. Cold it takes twelve CPU-minutes and wants only Go; `--find` prints nothing and fails instead.
set -euo pipefail
cd "$(dirname "$0")"

complete() {
  local name
  for name in etcd kube-apiserver kube-controller-manager; do [ -x "$1/$name" ] || return 1; done
}

# envtest's own archives have no controller manager; without one nothing collects garbage, so they are not enough.
if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
  complete "$KUBEBUILDER_ASSETS" && { echo "$KUBEBUILDER_ASSETS"; exit; }
  echo "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS lacks etcd, kube-apiserver or kube-controller-manager" >&2
  exit 1
fi
key=$(cat go.sum etcd/go.sum etcd/main.go | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/capstan/kube/$key
complete "$cache" && { echo "$cache"; exit; }
[ "${1:-}" != --find ] || exit 1

mkdir -p "$cache"
exec 7>"$cache/lock"
flock 7
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
IFS=. read -r major minor _ <<<"${version#v}"
flags="-s -w"
# Without these the server calls itself v0.0.0, and what depends on its version misbehaves.
for pair in "gitVersion=$version" "gitMajor=$major" "gitMinor=$minor"; do
  flags+=" -X k8s.io/component-base/version.$pair"
done
export CGO_ENABLED=0
# One after the other: together they would compile the same packages on the same few cores. Each is put in place whole.
(cd etcd && go build -trimpath -ldflags "-s -w" -o "$cache/etcd.new" . && mv "$cache/etcd.new" "$cache/etcd") >&2
for command in kube-apiserver kube-controller-manager; do
  [ -x "$cache/$command" ] && continue
  go build -trimpath -ldflags "$flags" -o "$cache/$command.new" "k8s.io/kubernetes/cmd/$command" >&2
  mv "$cache/$command.new" "$cache/$command"
done
echo "$cache"
