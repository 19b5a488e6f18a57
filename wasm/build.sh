#!/usr/bin/env bash
# Builds the npm package kiln-embed into wasm/pkg: the builds of the core (with relaxed SIMD, without for browsers
# that lack it, and with threads too), made small by wasm-opt, and the package's JavaScript; and its add-ons: kiln-embed-webgpu,
# the build for WebGPU, into wasm/pkg-webgpu, and kiln-embed-train, those that train, into wasm/pkg-train.
# wasm-opt takes minutes; KILN_WASM_OPT=-O1 sets another level where only the tests need the packages, and
# KILN_WASM_BUILDS names the builds that are made.
set -euo pipefail
cd "$(dirname "$0")/.."
# What runs beside it ends with it.
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
. tests/wasm-env.sh

new=wasm/pkg.new

# Where a build goes: into the package that has it.
folder() {
  case "$1" in
    webgpu) echo "$new/pkg-webgpu/$1" ;;
    train | train-threads) echo "$new/pkg-train/$1" ;;
    *) echo "$new/pkg/$1" ;;
  esac
}

# Takes one core, while others are compiled.
packed() {
  local file
  "$wasm_bindgen/wasm-bindgen" --target web --no-typescript --out-dir "$(folder "$1")" "$new/$1/kiln_wasm.wasm"
  rm -r "${new:?}/$1"
  file="$(folder "$1")/kiln_wasm_bg.wasm"
  "$cache/binaryen/node_modules/.bin/wasm-opt" "${KILN_WASM_OPT:-$level}" "${features[@]}" "$file" -o "$file.small"
  mv "$file.small" "$file"
  # Nobody asks how small another profile's is with brotli, which takes its time.
  [ "$wasm_profile" = page ] || return 0
  node -e '
    const { readFileSync } = require("fs"), zlib = require("zlib");
    const bytes = readFileSync(process.argv[1]);
    const brotli = zlib.brotliCompressSync(bytes, { params: { [zlib.constants.BROTLI_PARAM_SIZE_HINT]: bytes.length } });
    const mb = (bytes) => (bytes.length / 1e6).toFixed(2) + " MB";
    console.log(`${process.argv[2]}: ${mb(bytes)}, ${mb(brotli)} with brotli`);
  ' "$file" "$1"
}

# The last is a small one: nothing is compiled while it is made smaller.
all=(simd relaxed webgpu train train-threads threads)
packing=()
rm -rf "$new"
mkdir -p "$new"/pkg{,-webgpu,-train}
cp -r wasm/js/. wasm/package.json wasm/README.md "$new/pkg/"
cp wasm/addons/webgpu/* "$new/pkg-webgpu/"
cp wasm/addons/train/* "$new/pkg-train/"
for package in "$new"/*; do cp LICENSE-APACHE LICENSE-MIT "$package/"; done
for build in ${KILN_WASM_BUILDS:-${all[*]}}; do
  # Only what every browser with WebAssembly SIMD has; relaxed SIMD in its own build.
  features=(--enable-simd --enable-bulk-memory --enable-sign-ext --enable-nontrapping-float-to-int
    --enable-mutable-globals --enable-reference-types --enable-multivalue)
  compile=("${wasm_cargo[@]}" build --profile "$wasm_profile" "${wasm_flags[@]}" -p kiln-wasm)
  level=-O3
  case "$build" in
    relaxed)
      features+=(--enable-relaxed-simd)
      compile=(with_relaxed_simd "${compile[@]}")
      ;;
    threads)
      features+=(--enable-relaxed-simd --enable-threads)
      compile=(with_threads with_relaxed_simd "${compile[@]}" --no-default-features --features threads)
      ;;
    # Only what trains fetches these.
    train)
      compile+=(--features train)
      ;;
    train-threads)
      features+=(--enable-relaxed-simd --enable-threads)
      compile=(with_threads with_relaxed_simd "${compile[@]}" --no-default-features --features threads,train)
      ;;
    webgpu)
      # What has to be fast there is computed by shaders.
      compile+=(--features webgpu --config "profile.$wasm_profile.package.kiln-wasm.opt-level='s'")
      level=-Os
      ;;
  esac
  # Clippy looks at each of our lines in one of the builds that train and the one for WebGPU.
  case "$build" in
    train | train-threads | webgpu) "${compile[@]}" ;;
    *) KILN_LINTED=yes "${compile[@]}" ;;
  esac
  # The next build writes there, too.
  mkdir "$new/$build"
  cp "$wasm_built/kiln_wasm.wasm" "$new/$build/"
  packed "$build" &
  packing+=($!)
done
for one in "${packing[@]}"; do wait "$one"; done
# A bundler looks for each module that another may import.
for build in "${all[@]}"; do
  here=$(folder "$build")
  if [ ! -d "$here" ]; then
    mkdir "$here"
    printf '%s\n' "throw new Error(\"this kiln-embed was built without $build (KILN_WASM_BUILDS)\");" \
      'export default undefined;' >"$here/kiln_wasm.js"
    printf '\0asm\1\0\0\0' >"$here/kiln_wasm_bg.wasm"
  fi
done
for package in pkg pkg-webgpu pkg-train; do
  rm -rf "wasm/$package"
  mv "$new/$package" "wasm/$package"
  echo "built wasm/$package"
done
rmdir "$new"
