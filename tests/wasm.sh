#!/usr/bin/env bash
# Builds kiln-core and kiln-wasm (and checks web-demo) for wasm32, with the rustup target where
# there is one, else with Debian's Rust, which builds the standard library from its sources.
set -euo pipefail
cd "$(dirname "$0")/.."

target=wasm32-unknown-unknown
export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS='--cfg getrandom_backend="wasm_js" -C target-feature=+simd128'
# Nothing here is run by hand with a debugger: build fast, not small.
export CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=false

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

"${build[@]}" build "${flags[@]}" --config 'profile.dev.package."*".opt-level=0' --target $target -p kiln-core -p kiln-wasm
"${build[@]}" check "${flags[@]}" --config 'profile.dev.package."*".opt-level=0' --target $target -p kiln-web-demo
wasm="${CARGO_TARGET_DIR:-target}/$target/debug/kiln_wasm.wasm"
echo "wasm32: built $(basename "$wasm"), $(stat -c %s "$wasm") bytes (unoptimised)"
