# How to build for wasm32, for tests/wasm.sh and wasm/build.sh, which source it from the project's
# root: the rustup target where there is one, else Debian's Rust, which builds the standard library
# from its sources. Sets wasm_cargo, wasm_flags, wasm_triple, wasm_target, wasm_bindgen and cache.

cache="${KILN_CACHE:-$HOME/.cache/kiln}"
wasm_triple=wasm32-unknown-unknown
wasm_target="${CARGO_TARGET_DIR:-target}"
wasm_bindgen="$cache/wasm-bindgen-$(grep -A1 '^name = "wasm-bindgen"$' Cargo.lock | sed -n 's/^version = "\(.*\)"/\1/p')/bin"
export PATH="$cache/node-24/node_modules/.bin:$PATH"

# Features of the processor that is built for.
wasm_rustflags() {
  export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS="--cfg getrandom_backend=\"wasm_js\" -C target-feature=$1"
}

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
