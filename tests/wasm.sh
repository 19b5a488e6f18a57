#!/usr/bin/env bash
# Runs the tests of the SIMD products for wasm32 in Node, without relaxed SIMD and with it. The browser's
# packages are built, and tested, by browser.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/wasm-env.sh

wasm_rustflags +simd128
# Our own code as it is shipped, optimised; the crates that it uses as fast as they build.
export CARGO_PROFILE_DEV_OPT_LEVEL=3 CARGO_PROFILE_DEV_DEBUG=false
wasm_flags+=(--config 'profile.dev.package."*".opt-level=0')

# Runs kiln-core's wasm tests; only that crate is built anew for a further feature.
run_tests() {
  local test
  test=$("${wasm_cargo[@]}" rustc "${wasm_flags[@]}" --profile test -p kiln-core --lib --message-format json -- "$@" |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
  "$wasm_bindgen/wasm-bindgen-test-runner" "$test"
}
run_tests
run_tests -C target-feature=+relaxed-simd
