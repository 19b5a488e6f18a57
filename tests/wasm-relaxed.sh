#!/usr/bin/env bash
# Cargo's RUSTC_WORKSPACE_WRAPPER where relaxed SIMD is built for: only our own crates use it, so the
# crates that they need are built once for both. KILN_LINT: as in wasm-env.sh.
rustc=$1
shift
if [[ " $* " == *" wasm32-unknown-unknown "* ]]; then set -- "$@" -C target-feature=+relaxed-simd; fi
exec ${KILN_LINT:+"$KILN_LINT"} "$rustc" "$@"
