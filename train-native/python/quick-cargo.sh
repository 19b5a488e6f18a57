#!/usr/bin/env bash
# Cargo as build.sh --quick lets maturin call it: `cargo rustc` of this one crate becomes a build of the libraries of
# the whole workspace, and of one small test, so that what tests alone need counts too: with the same features as in
# the native tests every crate is compiled once. maturin finds its own among them.
set -euo pipefail

if [ "${1:-}" = rustc ]; then
  shift
  arguments=()
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case "$1" in
      --manifest-path) shift ;;
      --manifest-path=*) ;;
      *) arguments+=("$1") ;;
    esac
    shift
  done
  exec cargo build --test house "${arguments[@]}"
fi
exec cargo "$@"
