#!/usr/bin/env bash
# Checks web-demo for wasm32 and runs the tests of the SIMD products in Node, without relaxed SIMD and
# with it.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/wasm-env.sh

wasm_rustflags +simd128
# Our own code as it is shipped, optimised; the crates that it uses as fast as they build.
export CARGO_PROFILE_DEV_OPT_LEVEL=3 CARGO_PROFILE_DEV_DEBUG=false
wasm_flags+=(--config 'profile.dev.package."*".opt-level=0')

"${wasm_cargo[@]}" check "${wasm_flags[@]}" -p kiln-web-demo

# Runs kiln-core's wasm tests; only that crate is built anew for a further feature.
run_tests() {
  local test
  test=$("${wasm_cargo[@]}" rustc "${wasm_flags[@]}" --profile test -p kiln-core --lib --message-format json -- "$@" |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
  "$wasm_bindgen/wasm-bindgen-test-runner" "$test"
}
run_tests
run_tests -C target-feature=+relaxed-simd
