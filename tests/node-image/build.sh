#!/usr/bin/env bash
# Builds the two images that the Docker scenario uses, from this machine's own files and without a registry:
#   capstan/node:dev     a small root file system: busybox and the stand-in kubeadm (host/simulator), which does in a
#                        container what a simulated machine does
#   capstan/haproxy:dev  Debian's haproxy with its libraries, started the way kindest/haproxy starts it
# Usage: build.sh STAND_IN_KUBEADM [DOCKER_SOCKET]
set -euo pipefail

kubeadm=${1:?usage: build.sh STAND_IN_KUBEADM [DOCKER_SOCKET]}
socket=${2:-${DOCKER_SOCKET:-/var/run/docker.sock}}
docker=(docker -H "unix://$socket")

for program in busybox haproxy docker; do
  command -v "$program" >/dev/null || {
    echo "build.sh: $program is missing: apt-get install busybox-static haproxy docker.io" >&2
    exit 1
  }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Copies a program and the shared libraries it loads into a root file system.
install_program() { # program, path inside, root
  install -D -m 0755 "$1" "$3$2"
  { ldd "$1" 2>/dev/null | grep -o '/[^ ]*' || true; } | while read -r library; do
    [ -e "$3$library" ] || install -D -m 0755 "$(readlink -f "$library")" "$3$library"
  done
}

node=$work/node
mkdir -p "$node"/{bin,sbin,usr/bin,etc,tmp,run,proc,sys,dev,root,var/lib,etc/kubernetes/pki}
install -m 0755 "$(command -v busybox)" "$node/bin/busybox"
for applet in $("$node/bin/busybox" --list); do
  [ "$applet" = busybox ] || ln -sf busybox "$node/bin/$applet"
done
ln -sf /bin/busybox "$node/usr/bin/env"
install_program "$kubeadm" /usr/bin/kubeadm "$node"
printf 'root:x:0:0:root:/root:/bin/sh\n' >"$node/etc/passwd"
printf 'root:x:0:\n' >"$node/etc/group"
tar -C "$node" -c . | "${docker[@]}" import \
  -c 'ENV PATH=/bin:/sbin:/usr/bin' -c 'ENTRYPOINT ["/usr/bin/kubeadm","node"]' - capstan/node:dev >/dev/null

proxy=$work/haproxy
mkdir -p "$proxy"/{etc,tmp,run,usr/local/etc/haproxy,var/lib/haproxy}
install_program "$(command -v haproxy)" /usr/sbin/haproxy "$proxy"
printf 'root:x:0:0:root:/root:/bin/sh\n' >"$proxy/etc/passwd"
printf 'root:x:0:\n' >"$proxy/etc/group"
tar -C "$proxy" -c . | "${docker[@]}" import \
  -c 'ENV PATH=/usr/sbin' -c 'ENTRYPOINT ["haproxy","-W","-db","-f","/usr/local/etc/haproxy/haproxy.cfg"]' \
  - capstan/haproxy:dev >/dev/null

echo "built capstan/node:dev and capstan/haproxy:dev"
