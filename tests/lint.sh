#!/usr/bin/env bash
# Cargo's RUSTC_WORKSPACE_WRAPPER in tests/run.sh: clippy, and rustdoc for the libraries, look at each
# crate while it is compiled, with what it is compiled with. So the crates that ours use are built
# once; `cargo clippy` and `cargo doc` would check all of them again. Warnings are errors. KILN_LINTED: another build has shown them
# all that is in this one.
set -euo pipefail

rustc=$1
shift
if [[ " $* " == *" --out-dir "* && ! "${KILN_LINTED:-}" ]]; then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  compile=() lint=() doc=() library='' tests=no previous=''
  if [[ " $* " == *" --test "* ]]; then tests=yes; fi
  for argument in "$@"; do
    case "$argument in tests: $tests" in
      # A crate's own tests run for seconds, and optimising all of it once more would take minutes.
      opt-level=[23]' in tests: yes') compile+=(opt-level=1) ;;
      *) compile+=("$argument") ;;
    esac
    case "$previous" in
      --out-dir) argument=$scratch ;;
      --crate-type) [ "$argument" != lib ] || library=yes ;;
    esac
    case "$argument" in
      --emit=*) lint+=(--emit=metadata) ;;
      # What clippy keeps for the next time lies beside what the compiler keeps; rustdoc keeps nothing.
      incremental=*) lint+=("$argument/clippy") && unset 'doc[-1]' ;;
      # Cargo would take an artifact's name for the sign that the crate is compiled.
      --json=*) lint+=("${argument/artifacts,/}") doc+=("${argument/artifacts,/}") ;;
      --test) lint+=("$argument") library=no ;;
      *) lint+=("$argument") doc+=("$argument") ;;
    esac
    previous=$argument
  done
  looking() {
    clippy-driver "$rustc" "${lint[@]}" -D warnings
    if [ "$library" = yes ]; then rustdoc "${doc[@]}" -D warnings; fi
  }
  # Beside the compiler, so that crates which wait for this one do not wait for that. What it says comes in whole lines.
  (looking) 2>"$scratch.said" &
  trap 'kill %1 2>/dev/null || true; rm -rf "$scratch" "$scratch.said"' EXIT
  "$rustc" "${compile[@]}"
  failed=''
  wait %1 || failed=yes
  cat "$scratch.said" >&2
  [ ! "$failed" ]
else
  "$rustc" "$@"
fi
