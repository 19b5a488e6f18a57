#!/usr/bin/env bash
# Runs the tests of the SIMD products for wasm32 in Node, without relaxed SIMD and with it. The browser's
# packages are built, and tested, by browser.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/wasm-env.sh

# Runs kiln-embed's wasm tests. kiln-wasm is named so that its crates are
# built with the features that the package needs.
run_tests() {
  local test
  test=$("$@" "${wasm_cargo[@]}" test --profile "$wasm_profile" --no-run "${wasm_flags[@]}" -p kiln-embed -p kiln-wasm --lib --message-format json |
    sed -n 's/.*"executable":"\([^"]*kiln_embed[^"]*\)".*/\1/p' | tail -n 1)
  "$wasm_bindgen/wasm-bindgen-test-runner" "$test"
}
run_tests
KILN_LINTED=yes run_tests with_relaxed_simd
