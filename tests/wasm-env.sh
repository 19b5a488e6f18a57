# How to build for wasm32, for tests/wasm.sh and wasm/build.sh, which source it from the project's
# root: rustup's Rust where it has the target and the standard library's sources (for with_threads), else
# Debian's, which builds that library each time. Sets wasm_cargo, wasm_flags, wasm_triple, wasm_built, wasm_bindgen and cache; what is
# built with it shares a target folder of its own, and with it the crates from the registry.
# KILN_WASM_PROFILE names another profile than that of what is shipped.
# with_relaxed_simd and with_threads run a command whose builds have those. KILN_LINT: clippy looks at our crates
# first (lint.sh), where it is of the Rust that builds them.

cache="${KILN_CACHE:-$HOME/.cache/kiln}"
wasm_triple=wasm32-unknown-unknown
wasm_profile="${KILN_WASM_PROFILE:-page}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}/wasm"
wasm_built="$CARGO_TARGET_DIR/$wasm_triple/$wasm_profile"
wasm_bindgen="$cache/wasm-bindgen-$(grep -A1 '^name = "wasm-bindgen"$' Cargo.lock | sed -n 's/^version = "\(.*\)"/\1/p')/bin"
export PATH="$cache/node-24/node_modules/.bin:$PATH"

export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS='--cfg getrandom_backend="wasm_js" -C target-feature=+simd128'
with_relaxed_simd() { RUSTC_WORKSPACE_WRAPPER="$PWD/tests/wasm-relaxed.sh" "$@"; }

wasm_flags=(--target "$wasm_triple")
# Asked for by with_threads; set for all, since build scripts that see it change would run again.
export RUSTC_BOOTSTRAP=1

sysroot=$(rustc --print sysroot)
if [ -d "$sysroot/lib/rustlib/$wasm_triple/lib" ] && [ -d "$sysroot/lib/rustlib/src/rust/library" ]; then
  wasm_cargo=(cargo)
  if [ -n "${KILN_LINT:-}" ]; then export KILN_LINT="$PWD/tests/lint.sh" RUSTC_WORKSPACE_WRAPPER="$PWD/tests/lint.sh"; fi
else
  if [ -n "${KILN_LINT:-}" ]; then echo "clippy does not look at what only browsers run: it is not of Debian's Rust" >&2; fi
  unset KILN_LINT
  # The linker comes from the ordinary toolchain.
  host=$(rustc -vV | sed -n 's/^host: //p')
  export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER="$sysroot/lib/rustlib/$host/bin/rust-lld"
  export PATH="/usr/bin:$PATH"
  wasm_cargo=(/usr/bin/cargo)
  wasm_flags+=(-Z build-std=std,panic_abort)
  export PATH="$cache/node-24/node_modules/.bin:$PATH"
fi

# All crates, and the standard library, are built anew for a memory that threads share.
with_threads() {
  local flags="$CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS,+atomics,+bulk-memory,+mutable-globals" argument
  for argument in shared-memory import-memory max-memory=4294967296 export=__wasm_init_tls export=__tls_size export=__tls_align export=__tls_base; do
    flags+=" -C link-arg=--$argument"
  done
  CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS="$flags" "$@" -Z build-std=std,panic_abort
}
