#!/usr/bin/env bash
# Builds the image of deploy/capstan.yaml from what `make build` leaves and nothing else: the program, the libraries it
# loads, the certificates of public authorities, and provider components in /providers. No registry is asked.
# Usage: image.sh IMAGE COMPONENT.wasm...   (DOCKER_SOCKET says which engine gets it)
set -euo pipefail

image=${1:?usage: image.sh IMAGE COMPONENT.wasm...}
shift
root=$(cd "$(dirname "$0")/.." && pwd)
program=${CAPSTAN_BIN:-$root/target/release/capstan}
docker=(docker -H "unix://${DOCKER_SOCKET:-/var/run/docker.sock}")
roots=/etc/ssl/certs/ca-certificates.crt

[ -x "$program" ] || { echo "image.sh: $program is missing: make build" >&2; exit 1; }
[ -s "$roots" ] || { echo "image.sh: $roots is missing: apt-get install ca-certificates" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 0755 "$work"
mkdir -p "$work"/{etc/ssl/certs,providers,state,tmp,usr/bin,proc,sys,dev}
chmod 1777 "$work/tmp" "$work/state"
install -m 0755 "$program" "$work/usr/bin/capstan"
{ ldd "$program" 2>/dev/null | grep -o '/[^ ]*' || true; } | while read -r library; do
  install -D -m 0755 "$(readlink -f "$library")" "$work$library"
done
install -m 0644 "$roots" "$work$roots"
printf 'root:x:0:0:root:/:\ncapstan:x:65532:65532:capstan:/state:\n' >"$work/etc/passwd"
printf 'root:x:0:\ncapstan:x:65532:\n' >"$work/etc/group"
printf 'hosts: files dns\n' >"$work/etc/nsswitch.conf"
for component in "$@"; do
  install -m 0644 "$component" "$work/providers/"
done
tar -C "$work" --owner=0 --group=0 -c . | "${docker[@]}" import \
  -c 'ENTRYPOINT ["/usr/bin/capstan"]' -c 'USER 65532:65532' -c 'ENV HOME=/state' -c "ENV SSL_CERT_FILE=$roots" \
  - "$image" >/dev/null
echo "built $image"
