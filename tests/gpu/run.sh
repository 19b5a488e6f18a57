#!/usr/bin/env bash
# The run of README.md: tests/gpu/run.sh OUT [MINUTES], or tests/gpu/run.sh --rehearse OUT without a GPU; with --kernels, also
# without one, what pack.sh packs of compiled kernels comes into OUT/cache.
set -euo pipefail
cd "$(dirname "$0")/../.."

mode=''
case "${1:-}" in --rehearse | --kernels) mode=$1; shift ;; esac
out=$(realpath -m "${1:?usage: tests/gpu/run.sh [--rehearse] OUT [MINUTES]}")
minutes=${2:-9}
mkdir -p "$out"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for packed in target/gpu/*.xz; do
  name=$(basename "$packed" .xz)
  xz -dc "$packed" >"$scratch/$name"
  chmod +x "$scratch/$name"
done
if [ ! -x "$scratch/kiln" ]; then
  echo "error: target/gpu has no kiln.xz; run tests/gpu/pack.sh where Kiln is built" >&2
  exit 1
fi
cache=$scratch/cache
mkdir -p "$cache"
# Of another compiler's version or another card they are in a folder that nothing looks into.
if [ -e "$scratch/kernels.tar" ]; then tar -xf "$scratch/kernels.tar" -C "$cache"; fi
# The tests' fixtures are where they were built, or here.
if [ -e target/gpu/built-in ]; then
  there=$(cat target/gpu/built-in)
  [ -e "$there" ] || { mkdir -p "$(dirname "$there")" && ln -s "$PWD" "$there"; } || true
fi

python=${KILN_PYTHON:-python3}
if [ "$mode" ]; then
  export KILN_CACHE="${KILN_CACHE:-$HOME/.cache/kiln}"
  python=${KILN_PYTHON:-$KILN_CACHE/venv/bin/python}
  tests/setup.sh cuda python
  environment=environment
  if [ "$mode" = --kernels ]; then environment=counting cache=$out/cache; fi
  eval "$("$python" tests/cuda/check.py "$environment" "$KILN_CACHE/cuda-13.0" "$scratch/cuda")"
else
  # Where CUDA is, if it is not in its usual place: with nvcc, or in Python's packages.
  if [ -z "${CUDA_PATH:-}" ]; then
    nvcc=$(command -v nvcc || true)
    for root in /usr/local/cuda ${nvcc:+"$(dirname "$(dirname "$(realpath "$nvcc")")")"} \
      "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' 2>/dev/null)/nvidia/cu13"; do
      if [ -e "$root/include/cuda_runtime.h" ]; then export CUDA_PATH=$root; break; fi
    done
  fi
  for folder in "${CUDA_PATH:-}/lib64" "${CUDA_PATH:-}/lib" /usr/local/nvidia/lib64; do
    if [ -d "$folder" ]; then export LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"; fi
  done
  # cudarc asks for libnvrtc.so, which packages have with a version alone.
  if [ -n "${CUDA_PATH:-}" ] && ! compgen -G "$CUDA_PATH/lib*/libnvrtc.so" >/dev/null; then
    mkdir -p "$scratch/lib"
    for library in "$CUDA_PATH"/lib*/libnvrtc.so.1*; do ln -sf "$library" "$scratch/lib/libnvrtc.so"; done
    export LD_LIBRARY_PATH="$scratch/lib:${LD_LIBRARY_PATH:-}"
  fi
fi
# A kernel is compiled in 0.3 to 0.4 s, and autotune tries dozens of each shape: as few as may be, or minutes go into it.
export CUBECL_AUTOTUNE_LEVEL="${CUBECL_AUTOTUNE_LEVEL:-minimal}"
export XDG_CACHE_HOME="$cache" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1
"$python" tests/gpu/run.py $mode --kiln "$scratch/kiln" --parity "$scratch/parity" --products "$scratch/products" \
  --mini target/gpu/kiln-mini.kiln --work "$scratch" --out "$out" --minutes "$minutes"
