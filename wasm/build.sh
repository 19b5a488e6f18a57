#!/usr/bin/env bash
# Builds the npm package kiln-embed into wasm/pkg: two builds of the core (with relaxed SIMD, and
# without for browsers that lack it), made small by wasm-opt, and the package's JavaScript.
#
#   wasm/build.sh          release, as it is published
#   wasm/build.sh --fast   without wasm-opt, for tests
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/wasm-env.sh

out=wasm/pkg
rm -rf "$out.new"
mkdir -p "$out.new"
cp wasm/js/* wasm/package.json wasm/README.md "$out.new/"
for build in simd relaxed; do
  # Only what every browser with WebAssembly SIMD has; relaxed SIMD in its own build.
  features=(--enable-simd --enable-bulk-memory --enable-sign-ext --enable-nontrapping-float-to-int
    --enable-mutable-globals --enable-reference-types --enable-multivalue)
  wasm_features=+simd128
  if [ "$build" = relaxed ]; then
    features+=(--enable-relaxed-simd)
    wasm_features+=,+relaxed-simd
  fi
  wasm_rustflags "$wasm_features"
  # Each build keeps its own folder, so that neither undoes the other's.
  CARGO_TARGET_DIR="$wasm_target/$build" "${wasm_cargo[@]}" build --release "${wasm_flags[@]}" -p kiln-wasm
  "$wasm_bindgen/wasm-bindgen" --target web --no-typescript --out-dir "$out.new/$build" \
    "$wasm_target/$build/$wasm_triple/release/kiln_wasm.wasm"
  file="$out.new/$build/kiln_wasm_bg.wasm"
  if [ "${1:-}" != --fast ]; then
    "$cache/binaryen/node_modules/.bin/wasm-opt" -O3 "${features[@]}" "$file" -o "$file.small"
    mv "$file.small" "$file"
  fi
  node -e '
    const { readFileSync } = require("fs"), zlib = require("zlib");
    const bytes = readFileSync(process.argv[1]);
    const brotli = zlib.brotliCompressSync(bytes, { params: { [zlib.constants.BROTLI_PARAM_SIZE_HINT]: bytes.length } });
    const mb = (bytes) => (bytes.length / 1e6).toFixed(2) + " MB";
    console.log(`${process.argv[2]}: ${mb(bytes)}, ${mb(brotli)} with brotli`);
  ' "$file" "$build"
done
rm -rf "$out"
mv "$out.new" "$out"
echo "built $out"
