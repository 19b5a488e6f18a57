#!/usr/bin/env bash
# Checks that the command and the Python package compile for Windows (x86-64), by mingw-w64's headers. Nothing is linked or
# run. Takes ten minutes and is not part of tests/run.sh. On a Debian machine it installs the cross compiler, and Rust's
# standard library by rustup.
set -euo pipefail
cd "$(dirname "$0")/.."

triple=x86_64-pc-windows-gnu
if ! command -v x86_64-w64-mingw32-g++ >/dev/null; then
  echo "setup: cross compiler"
  as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq g++-mingw-w64-x86-64 >/dev/null
fi
rustup target add "$triple"

# usearch asks for Windows.h, which on a file system that tells cases apart has another name.
headers=$(mktemp -d)
trap 'rm -rf "$headers"' EXIT
echo '#include <windows.h>' >"$headers/Windows.h"
export CXXFLAGS_x86_64_pc_windows_gnu="-I$headers"
# The variant with std::mutex.
export CC_x86_64_pc_windows_gnu=x86_64-w64-mingw32-gcc-posix CXX_x86_64_pc_windows_gnu=x86_64-w64-mingw32-g++-posix
# Python's stable ABI needs no Python of Windows's.
export PYO3_NO_PYTHON=1
cargo check --profile quick --target "$triple" -p train-native -p kiln-python
echo "windows: the command and the Python package compile for $triple"
