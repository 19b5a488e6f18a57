#!/usr/bin/env bash
# Packs what tests/gpu/run.sh takes along into target/gpu: the command with CUDA, and the tests of numbers.
#
#   tests/gpu/pack.sh
#
# The command is the release's where there is one (or the one that KILN_NATIVE names), else it is built; the tests are those
# that tests/run.sh built, and are left out where there are none.
set -euo pipefail
cd "$(dirname "$0")/../.."

out=target/gpu
rm -rf "$out"
mkdir -p "$out"
binary=${KILN_NATIVE:-}
for built in target/x86_64-unknown-linux-gnu/release/kiln target/release/kiln; do
  if [ -z "$binary" ] && [ -x "$built" ]; then binary=$built; fi
done
if [ -z "$binary" ]; then
  cargo build --release --locked -p train-native --features cuda
  binary=target/release/kiln
fi
strip -o "$out/kiln" "$binary"
# The newest of each name: cargo keeps older ones.
parity=$(ls -t target/quick/deps/parity-* 2>/dev/null | grep -v '\.d$' | head -n 1 || true)
if [ -n "$parity" ]; then
  strip -o "$out/parity" "$parity"
  # Its fixtures are looked for where they were when it was built.
  pwd >"$out/built-in"
else
  echo "pack: no tests of numbers are built (tests/run.sh builds them); they are left out" >&2
fi
xz -T0 -6 "$out"/kiln
[ ! -e "$out/parity" ] || xz -T0 -6 "$out/parity"
cp web-demo/kiln-mini.kiln "$out/"
du -sh "$out"
