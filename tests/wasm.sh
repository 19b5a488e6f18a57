#!/usr/bin/env bash
# Builds kiln-core and kiln-wasm (and checks web-demo) for wasm32, with the rustup target where
# there is one, else with Debian's Rust, which builds the standard library from its sources. Then
# runs the tests of the SIMD products in Node, without relaxed SIMD and with it.
set -euo pipefail
cd "$(dirname "$0")/.."

target=wasm32-unknown-unknown
export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS='--cfg getrandom_backend="wasm_js" -C target-feature=+simd128'
# Nothing here is run by hand with a debugger: build fast, not small.
export CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=false
# Before Node 22 relaxed SIMD is asked for.
NODE_ARGS=""
if node --v8-options | grep -q experimental-wasm-relaxed-simd; then NODE_ARGS=--experimental-wasm-relaxed-simd; fi
export NODE_ARGS

libdir=$(rustc --print target-libdir --target $target 2>/dev/null || true)
if [ -n "$libdir" ] && [ -d "$libdir" ]; then
  build=(cargo)
  flags=()
else
  # The linker comes from the ordinary toolchain.
  sysroot=$(rustc --print sysroot)
  host=$(rustc -vV | sed -n 's/^host: //p')
  export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER="$sysroot/lib/rustlib/$host/bin/rust-lld"
  export RUSTC_BOOTSTRAP=1 PATH="/usr/bin:$PATH"
  build=(/usr/bin/cargo)
  flags=(-Z build-std=std,panic_abort)
fi

flags+=(--config 'profile.dev.package."*".opt-level=0' --target $target)

"${build[@]}" build "${flags[@]}" -p kiln-core -p kiln-wasm
"${build[@]}" check "${flags[@]}" -p kiln-web-demo
wasm="${CARGO_TARGET_DIR:-target}/$target/debug/kiln_wasm.wasm"
echo "wasm32: built $(basename "$wasm"), $(stat -c %s "$wasm") bytes (unoptimised)"

version=$(grep -A1 '^name = "wasm-bindgen"$' Cargo.lock | sed -n 's/^version = "\(.*\)"/\1/p')
runner="${KILN_CACHE:-$HOME/.cache/kiln}/wasm-bindgen-$version/bin/wasm-bindgen-test-runner"
# Runs kiln-core's wasm tests; only that crate is built anew for a further feature.
run_tests() {
  local test
  test=$("${build[@]}" rustc "${flags[@]}" --profile test -p kiln-core --lib --message-format json -- "$@" |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
  "$runner" "$test"
}
run_tests
# A module with one instruction of relaxed SIMD.
if node $NODE_ARGS -e 'process.exit(WebAssembly.validate(new Uint8Array([
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 15, 1, 13, 0, 65, 1, 253, 15, 65, 2, 253, 15,
  253, 128, 2, 11])) ? 0 : 1)'; then
  run_tests -C target-feature=+relaxed-simd
else
  echo "skipped: this Node ($(node --version)) has no relaxed SIMD"
fi
