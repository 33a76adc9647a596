#!/usr/bin/env bash
# Gets what the tests need and this machine lacks. Says loudly what it had to leave out; what was left out is listed in
# target/test-skips, which the test runner reads and .ci/run refuses.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p target target/tools
: >target/test-skips
skip() {
  echo "SKIPPED: $*" >&2
  echo "$*" >>target/test-skips
}

target_dir=$(rustc --print target-libdir --target wasm32-unknown-unknown 2>/dev/null || true)
[ -d "$target_dir" ] || rustup target add wasm32-unknown-unknown

packages=()
command -v dockerd >/dev/null || packages+=(docker.io)
command -v busybox >/dev/null || packages+=(busybox-static)
command -v haproxy >/dev/null || packages+=(haproxy)
command -v iptables >/dev/null || packages+=(iptables)
command -v isoinfo >/dev/null || packages+=(genisoimage)
command -v ip >/dev/null || packages+=(iproute2)
command -v cc >/dev/null || packages+=(gcc libc6-dev)
if [ ${#packages[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing ${packages[*]}"
    apt-get update -q >target/apt.log 2>&1 || true
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${packages[@]}" >>target/apt.log 2>&1 ||
      skip "Debian packages ${packages[*]} could not be installed (target/apt.log says why)"
  else
    skip "the Docker scenario: ${packages[*]} missing and this is not root; apt-get install ${packages[*]}"
  fi
fi

# moto checks the signatures that the gateway makes.
if [ ! -x target/venv/bin/moto_server ]; then
  { [ -x target/venv/bin/python ] || python3 -m venv target/venv; } >target/venv.log 2>&1 &&
    target/venv/bin/python -m pip install -q 'moto[server]==5.2.5' >>target/venv.log 2>&1 ||
    skip "signatures of AWS requests: moto could not be installed into target/venv (target/venv.log says why)"
fi

# kubectl is the client of the scenarios. Debian's is too old for the newest API, so it is built where there is none.
if ! command -v kubectl >/dev/null && [ ! -x target/tools/kubectl ]; then
  if command -v go >/dev/null; then
    echo "building kubectl (some minutes, once)"
    (cd tests/kubectl && CGO_ENABLED=0 go build -trimpath -ldflags \
      "-s -w -X k8s.io/component-base/version.gitVersion=v1.35.4 -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=35" \
      -o ../../target/tools/kubectl .)
  else
    skip "all scenarios that use kubectl: neither kubectl nor go is here"
  fi
fi

# The real API server that the embedded one is compared with; once, into a cache that outlives the tree.
if ! tests/kube/build.sh --find >/dev/null 2>&1; then
  if command -v go >/dev/null; then
    echo "building kube-apiserver, kube-controller-manager and etcd (a quarter of an hour, once)"
    tests/kube/build.sh >/dev/null 2>target/kube.log ||
      skip "what is compared with a real kube-apiserver: it could not be built (target/kube.log says why)"
  else
    skip "what is compared with a real kube-apiserver: neither KUBEBUILDER_ASSETS nor go is here"
  fi
fi
# clusterctl, and a program of client-go and controller-runtime that is run against both servers.
if ! tests/clients/build.sh --find >/dev/null 2>&1; then
  if command -v go >/dev/null; then
    echo "building clusterctl and a program of client-go and controller-runtime (some minutes, once)"
    tests/clients/build.sh >/dev/null 2>target/clients.log ||
      skip "client-go, controller-runtime and clusterctl: their programs could not be built (target/clients.log says why)"
  else
    skip "client-go, controller-runtime and clusterctl: go is not here"
  fi
fi
if ! command -v cargo-deny >/dev/null && [ ! -x target/tools/bin/cargo-deny ]; then
  echo "building cargo-deny (some minutes, once)"
  cargo install --debug --locked --root target/tools --target-dir target/tools/build cargo-deny >target/cargo-deny.log 2>&1 ||
    skip "cargo deny: it could not be installed (target/cargo-deny.log says why)"
  rm -rf target/tools/build
fi

# fakepve stands in for Proxmox VE; it checks every call against the real schema.
if [ ! -x target/venv/bin/python ] || ! target/venv/bin/python -c 'import fakepve, cryptography' 2>/dev/null; then
  echo "installing fakepve"
  { python3 -m venv target/venv && target/venv/bin/python -m pip install -q 'fakepve[crypto]==0.5.0'; } >target/venv.log 2>&1 ||
    skip "Proxmox: fakepve could not be installed (target/venv.log says why)"
fi
