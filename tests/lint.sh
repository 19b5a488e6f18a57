#!/usr/bin/env bash
# Cargo's RUSTC_WORKSPACE_WRAPPER in tests/run.sh: clippy, and rustdoc for the libraries, look at each
# crate before it is compiled, with what it is compiled with. So the crates that ours use are built
# once; `cargo clippy` and `cargo doc` would check all of them again. Warnings are errors.
set -euo pipefail

rustc=$1
shift
if [[ " $* " == *" --out-dir "* ]]; then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  lint=() doc=() library='' previous=''
  for argument in "$@"; do
    case "$previous" in
      --out-dir) argument=$scratch ;;
      --crate-type) [ "$argument" != lib ] || library=yes ;;
    esac
    case "$argument" in
      --emit=*) lint+=(--emit=metadata) ;;
      # Cargo would take an artifact's name for the sign that the crate is compiled.
      --json=*) lint+=("${argument/artifacts,/}") doc+=("${argument/artifacts,/}") ;;
      --test) lint+=("$argument") library=no ;;
      *) lint+=("$argument") doc+=("$argument") ;;
    esac
    previous=$argument
  done
  clippy-driver "$rustc" "${lint[@]}" -D warnings
  if [ "$library" = yes ]; then rustdoc "${doc[@]}" -D warnings; fi
fi
"$rustc" "$@"
