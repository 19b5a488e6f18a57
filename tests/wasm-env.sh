# How to build for wasm32, for tests/wasm.sh and wasm/build.sh, which source it from the project's
# root: the rustup target where there is one, else Debian's Rust, which builds the standard library
# from its sources. Sets wasm_cargo, wasm_flags, wasm_triple, wasm_built, wasm_bindgen and cache; what is
# built with it shares a target folder of its own, and with it the crates from the registry.

cache="${KILN_CACHE:-$HOME/.cache/kiln}"
wasm_triple=wasm32-unknown-unknown
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}/wasm"
wasm_built="$CARGO_TARGET_DIR/$wasm_triple"
wasm_bindgen="$cache/wasm-bindgen-$(grep -A1 '^name = "wasm-bindgen"$' Cargo.lock | sed -n 's/^version = "\(.*\)"/\1/p')/bin"
export PATH="$cache/node-24/node_modules/.bin:$PATH"

export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS='--cfg getrandom_backend="wasm_js" -C target-feature=+simd128'
# Runs a command whose builds have relaxed SIMD too.
with_relaxed_simd() { RUSTC_WORKSPACE_WRAPPER="$PWD/tests/wasm-relaxed.sh" "$@"; }

wasm_flags=(--target "$wasm_triple")
libdir=$(rustc --print target-libdir --target "$wasm_triple" 2>/dev/null || true)
if [ -n "$libdir" ] && [ -d "$libdir" ]; then
  wasm_cargo=(cargo)
else
  # The linker comes from the ordinary toolchain.
  sysroot=$(rustc --print sysroot)
  host=$(rustc -vV | sed -n 's/^host: //p')
  export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER="$sysroot/lib/rustlib/$host/bin/rust-lld"
  export RUSTC_BOOTSTRAP=1 PATH="/usr/bin:$PATH"
  wasm_cargo=(/usr/bin/cargo)
  wasm_flags+=(-Z build-std=std,panic_abort)
  export PATH="$cache/node-24/node_modules/.bin:$PATH"
fi
