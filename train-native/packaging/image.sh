#!/usr/bin/env bash
# Makes the root folder of the container's image: the command, the libraries that it asks for, the certificates of the
# system, and kiln-mini, so that the image serves something without a network.
#
#   train-native/packaging/image.sh [BINARY] [FOLDER]     (default: what `cargo build --profile dist` made, target/image)
#   train-native/packaging/image.sh --try [FOLDER]        serves from it: read-only, as a user without rights
set -euo pipefail
cd "$(dirname "$0")/../.."

try() {
  local root=$1 port=18080
  # A file system that nothing can be written to, as `docker run --read-only` has it.
  unshare --mount --propagation private bash -c "
    mount --bind '$root' '$root' && mount -o remount,ro,bind '$root' &&
    exec chroot --userspec=65532:65532 '$root' /kiln serve --host 127.0.0.1 --port $port --model /kiln-mini.kiln" &
  server=$!
  trap 'kill $server 2>/dev/null; wait $server 2>/dev/null || true' EXIT
  for _ in $(seq 100); do
    curl -sf "http://127.0.0.1:$port/readyz" && break
    sleep 0.2
  done
  curl -sf "http://127.0.0.1:$port/embed" -H 'content-type: application/json' -d '{"inputs": "a boat on the river"}' |
    python3 -c 'import json, sys; [vector] = json.load(sys.stdin); assert abs(sum(x * x for x in vector) - 1) < 1e-4; print("image: a vector of", len(vector), "numbers")'
  du -sh "$root"
}

if [ "${1:-}" = --try ]; then
  try "$(realpath "${2:-target/image}/root")"
  exit
fi
binary="${1:-${CARGO_TARGET_DIR:-target}/dist/kiln}"
root="${2:-target/image}/root"
rm -rf "$root"
mkdir -p "$root/etc/ssl/certs" "$root/models" "$root/tmp"
install -m 755 "$binary" "$root/kiln"
strip "$root/kiln"
cp web-demo/kiln-mini.kiln "$root/"
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
printf 'kiln:x:65532:65532::/models:/kiln\n' >"$root/etc/passwd"
chown 65532:65532 "$root/models" 2>/dev/null || true
chmod 1777 "$root/tmp"
# The loader and each library, at the places where the binary looks for them.
ldd "$binary" | grep -o '/[^ ]*' | sort -u | while read -r library; do
  mkdir -p "$root$(dirname "$library")"
  cp -L "$library" "$root$library"
done
du -sh "$root"
