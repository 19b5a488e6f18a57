#!/usr/bin/env bash
# Packs what tests/gpu/run.sh takes along into target/gpu: the command with CUDA, the probe of products, and the tests of
# numbers.
#
#   tests/gpu/pack.sh               the command is the release's where there is one (or the one that KILN_NATIVE names), and the
#                                   probe lies beside it; else both are built; the tests are those that tests/run.sh built
#   tests/gpu/pack.sh --kernels     packs compiled kernels too: the run's commands with its own models, over the driver of
#                                   tests/cuda as an H100, which compiles and carries nothing out
#
# The probe and the tests are left out where there are none.
set -euo pipefail
cd "$(dirname "$0")/../.."

kernels=''
case "${1:-}" in
  '') ;;
  --kernels) kernels=yes ;;
  *) echo "usage: tests/gpu/pack.sh [--kernels]" >&2 && exit 2 ;;
esac
out=target/gpu
rm -rf "$out"
mkdir -p "$out"
binary=${KILN_NATIVE:-}
for built in target/x86_64-unknown-linux-gnu/dist/kiln target/release/kiln; do
  # One without CUDA is of no use there.
  if [ -z "$binary" ] && [ -x "$built" ] && ! "$built" devices | grep -q 'this build has no CUDA'; then binary=$built; fi
done
if [ -z "$binary" ]; then
  cargo build --release --locked -p train-native --features cuda --bin kiln --example products
  binary=target/release/kiln
fi
strip -o "$out/kiln" "$binary"
probe=$(dirname "$binary")/examples/products
if [ -x "$probe" ]; then
  strip -o "$out/products" "$probe"
else
  echo "pack: no probe is beside $binary (cargo build --release --locked -p train-native --features cuda --example products); it is left out" >&2
fi
# The newest of each name: cargo keeps older ones.
parity=$(ls -t target/quick/deps/parity-* 2>/dev/null | grep -v '\.d$' | head -n 1 || true)
if [ -n "$parity" ]; then
  strip -o "$out/parity" "$parity"
  # Its fixtures are looked for where they were when it was built.
  pwd >"$out/built-in"
else
  echo "pack: no tests of numbers are built (tests/run.sh builds them); they are left out" >&2
fi
for name in kiln products parity; do
  [ ! -e "$out/$name" ] || xz -T0 -6 "$out/$name"
done
cp web-demo/kiln-mini.kiln "$out/"
if [ "$kernels" ]; then
  made=$(mktemp -d)
  trap 'rm -rf "$made"' EXIT
  tests/gpu/run.sh --kernels "$made" 600
  compiled=("$made"/cache/kiln/kernels/sm_*)
  [ -d "${compiled[0]}" ] || { echo "pack: no kernel was compiled; see the lines above" >&2 && exit 1; }
  # Not what was found to be the fastest, whose times nobody took.
  tar -C "$made/cache" -cf "$out/kernels.tar" "${compiled[@]#"$made/cache/"}"
  xz -T0 -6 "$out/kernels.tar"
fi
du -sh "$out"
if [ "$(du -sm "$out" | cut -f 1)" -gt 64 ]; then
  echo "pack: that is more than 64 MiB, which one may be allowed to bring along:" >&2
  du -h "$out"/* >&2
  exit 1
fi
