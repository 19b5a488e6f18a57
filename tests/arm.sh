#!/usr/bin/env bash
# Runs the tests of kiln-embed's kernels on AArch64, under qemu where the machine is another: NEON with and
# without products of bytes. Takes ten minutes, most of it to build, and is not part of tests/run.sh.
# On a Debian machine it installs the cross compiler and qemu, and Rust's standard library by rustup.
set -euo pipefail
cd "$(dirname "$0")/.."

triple=aarch64-unknown-linux-gnu
if [ "$(uname -m)" != aarch64 ]; then
  if ! command -v qemu-aarch64 >/dev/null || ! command -v aarch64-linux-gnu-g++ >/dev/null; then
    echo "setup: cross compiler and qemu"
    as_root=()
    [ "$(id -u)" = 0 ] || as_root=(sudo)
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq qemu-user g++-aarch64-linux-gnu >/dev/null
  fi
  rustup target add "$triple"
  export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
  export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='qemu-aarch64 -L /usr/aarch64-linux-gnu'
  export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc CXX_aarch64_unknown_linux_gnu=aarch64-linux-gnu-g++
fi
export PROPTEST_RNG_SEED=1
cargo test --profile quick --target "$triple" -p kiln-embed --lib -- quant:: kernels:: parallel:: index::
