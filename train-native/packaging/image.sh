#!/usr/bin/env bash
# Makes the two folders of the container's image, of at most 120 MB: `root`, which is root's (the command, the libraries that
# it asks for, the certificates of the system, and kiln-mini, so that the image serves something without a network), and
# `owned`, which is the server's (where it keeps models).
#
#   train-native/packaging/image.sh [BINARY] [FOLDER]     (default: one for the CPU, which is built first; target/image)
#   train-native/packaging/image.sh --try [FOLDER]        serves from it: read-only, as a user without rights; root alone can
set -euo pipefail
cd "$(dirname "$0")/../.."

most=120000000
user=65532:65532

measured() {
  local bytes
  bytes=$(du -sb --total "$1/root" "$1/owned" | tail -n 1 | cut -f 1)
  echo "image: $((bytes / 1000000)) MB"
  if [ "$bytes" -gt "$most" ]; then
    echo "image: $1 has $bytes bytes, more than $most; give a binary without GPUs (train-native/packaging/image.sh builds one)" >&2
    return 1
  fi
}

# What Docker makes of the folders: COPY gives all to root, but for what it is told, whoever owns it here.
copied() {
  cp -a --no-preserve=ownership "$1/root/." "$1/owned/." "$2/"
  chown -R 0:0 "$2"
  (cd "$1/owned" && find . -mindepth 1 -print0) | (cd "$2" && xargs -0r chown -h "$user")
  chmod 755 "$2"
}

try() {
  local port=18080
  measured "$1"
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  mkdir "$scratch/root" "$scratch/volume"
  copied "$1" "$scratch/root"
  # A new volume begins as what it covers.
  cp -a "$scratch/root/models/." "$scratch/volume/"
  chown --reference "$scratch/root/models" "$scratch/volume"
  chmod --reference "$scratch/root/models" "$scratch/volume"
  install -m 644 /dev/stdin "$scratch/volume/text.txt" <<<'a boat on the river'
  # A file system that nothing can be written to, as `docker run --read-only` has it, but for the volume. The mounts go with
  # the namespace.
  cat >"$scratch/inside" <<'INSIDE'
set -euo pipefail
scratch=$1 user=$2
shift 2
mount --bind "$scratch/root" "$scratch/root"
mount -o remount,ro,bind "$scratch/root"
mount --bind "$scratch/volume" "$scratch/root/models"
exec env -i PATH="$PATH" HOME=/models HF_HOME=/models XDG_CACHE_HOME=/models chroot --userspec="$user" "$scratch/root" /kiln "$@"
INSIDE
  inside() { exec unshare --mount --propagation private bash "$scratch/inside" "$scratch" "$user" "$@"; }

  local embed=(embed --quiet --device cpu --model /kiln-mini.kiln --input /models/text.txt --output)
  (inside "${embed[@]}" /models/vector.jsonl)
  echo "image: the server's user writes to /models"
  if (inside "${embed[@]}" /vector.jsonl) 2>"$scratch/said"; then
    echo "image: the server's user writes to /, which should be read-only and root's" >&2
    return 1
  fi
  echo "image: and not to /: $(tail -n 1 "$scratch/said")"

  inside serve --host 127.0.0.1 --port "$port" --model /kiln-mini.kiln &
  server=$!
  trap 'kill $server 2>/dev/null; wait $server 2>/dev/null || true; rm -rf "$scratch"' EXIT
  for _ in $(seq 100); do
    curl -sf "http://127.0.0.1:$port/readyz" && break
    sleep 0.2
  done
  curl -sf "http://127.0.0.1:$port/embed" -H 'content-type: application/json' -d '{"inputs": "a boat on the river"}' |
    python3 -c 'import json, sys; [vector] = json.load(sys.stdin); assert abs(sum(x * x for x in vector) - 1) < 1e-4; print("image: a vector of", len(vector), "numbers")'
}

if [ "${1:-}" = --try ]; then
  try "$(realpath "${2:-target/image}")"
  exit
fi
binary="${1:-}"
folder="${2:-target/image}"
if [ ! "$binary" ]; then
  # What the wheel has: all but what a GPU needs, whose driver and compiler no image from scratch has.
  features=$(sed -n '/^\[features\]/,/^\[/s/^default = \[\(.*\)\]$/\1/p' train-native/python/Cargo.toml | tr -d '" ')
  cargo build --profile dist --locked -p train-native --bin kiln --features "$features"
  binary="${CARGO_TARGET_DIR:-target}/dist/kiln"
fi
root="$folder/root"
rm -rf "$root" "$folder/owned"
mkdir -p "$root/etc/ssl/certs" "$root/tmp" "$folder/owned/models"
install -m 755 "$binary" "$root/kiln"
strip "$root/kiln"
cp web-demo/kiln-mini.kiln "$root/"
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
printf 'kiln:x:65532:65532::/models:/kiln\n' >"$root/etc/passwd"
chmod 1777 "$root/tmp"
# The loader and each library, at the places where the binary looks for them.
ldd "$binary" | grep -o '/[^ ]*' | sort -u | while read -r library; do
  mkdir -p "$root$(dirname "$library")"
  cp -L "$library" "$root$library"
done
measured "$folder"
