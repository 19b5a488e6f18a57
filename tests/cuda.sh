#!/usr/bin/env bash
# CUDA without a GPU, over a driver of our own (tests/cuda): NVIDIA's real run-time compiler compiles every kernel that
# embedding and training ask for, for the architectures of an A100, an H100 and a B200; then the same kernels run on the
# CPU, and the numbers are compared with those of the CPU backend; then several processes train together, whose
# emulated GPUs sum by an NCCL of our own.
#
#   tests/cuda.sh            all, some thirty minutes; 270 MB from PyPI, gcc and g++ on x86-64
#   tests/cuda.sh compile    the first alone
#   tests/cuda.sh emulate    the second alone
#   tests/cuda.sh nccl       the third alone
#   tests/cuda.sh count      launches and memory of steps by layers, up to the width of a 7 B model (20 GB of main memory), and
#                            whether they are more than check.py allows
#   tests/cuda.sh recipes [NAME ..]   the largest memory of each stage of the papers' recipes, beside what `train --dry-run` says
#
# What it cannot show: times, races, kernels of the copy engine (compiled, not run), and the driver's own behaviour.
# It takes the release's binary where there is one, else the tests' (or the one that KILN_NATIVE names); to count, the
# tests' alone, which is built without autotune: with it every shape has dozens of kernels compiled.
set -euo pipefail
cd "$(dirname "$0")/.."

export KILN_CACHE="${KILN_CACHE:-$HOME/.cache/kiln}"
if [ "$(uname -sm)" != 'Linux x86_64' ]; then
  echo "skipped: the emulator is written for Linux on x86-64"
  exit 0
fi
binary=${KILN_NATIVE:-}
candidates=(target/x86_64-unknown-linux-gnu/dist/kiln target/release/kiln target/quick/kiln)
case " $* " in *' count '* | *' recipes '*) candidates=(target/quick/kiln) ;; esac
for built in "${candidates[@]}"; do
  # One without CUDA is of no use here.
  if [ -z "$binary" ] && [ -x "$built" ] && ! "$built" devices | grep -q 'this build has no CUDA'; then binary=$PWD/$built; fi
done
if [ -z "$binary" ]; then
  echo "error: none of ${candidates[*]}; cargo build --release -p train-native --features cuda, or tests/run.sh, or name one by KILN_NATIVE" >&2
  exit 1
fi
tests/setup.sh cuda python
exec "${KILN_PYTHON:-$KILN_CACHE/venv/bin/python}" tests/cuda/check.py "$binary" "$KILN_CACHE/cuda-13.0" "$@"
