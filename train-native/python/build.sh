#!/usr/bin/env bash
# Makes the wheel of kiln-embed, with the model kiln-mini inside, and prints its path.
#
#   train-native/python/build.sh [OUT]          the release, for every Linux on x86-64 since glibc 2.28 and every
#                                               Python since 3.9, checked                  [default: target/wheels]
#   train-native/python/build.sh --features cuda,autotune [OUT]
#                                               for a GPU (cuda or vulkan; autotune finds the fastest kernels); larger,
#                                               and not checked
#   train-native/python/build.sh --quick [OUT]  for the tests: this machine alone, of what the native tests have built
#
# tests/setup.sh wheel installs what it needs: maturin, Zig, auditwheel and twine, all from PyPI.
set -euo pipefail
cd "$(dirname "$0")/../.."

quick='' features=()
case "${1:-}" in
  --quick) quick=yes; shift ;;
  --features) features=(--features "${2:?which features? cuda,autotune or vulkan,autotune}"); shift 2 ;;
  -*) echo "build.sh: $1 is no option; there are --quick and --features LIST" >&2; exit 2 ;;
esac
case "${1:-}" in -*) echo "build.sh: $1 comes after another option; there is one at a time" >&2; exit 2 ;; esac
out=$(realpath -m "${1:-target/wheels}")
here=train-native/python
tests/setup.sh wheel
tools="${KILN_CACHE:-$HOME/.cache/kiln}/wheel/bin"

# The package's own copies, which are no part of the repository.
cp web-demo/kiln-mini.kiln $here/python/kiln_embed/kiln-mini.kiln
cp LICENSE-MIT LICENSE-APACHE $here/

built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
if [ "$quick" ]; then
  # Cargo compiles crates again for other features: with those of the whole workspace all that the native tests
  # have built is used again, and only this crate and PyO3 are compiled.
  CARGO="$PWD/$here/quick-cargo.sh" "$tools/maturin" build --manifest-path $here/Cargo.toml --profile quick \
    --no-default-features --compatibility linux --out "$built" >&2
else
  PATH="$tools:$PATH" "$tools/maturin" build --manifest-path $here/Cargo.toml --profile dist --locked --strip --zig \
    "${features[@]}" --compatibility manylinux_2_28 --out "$built" >&2
fi
wheel=$(echo "$built"/kiln_embed-*.whl)
if [ ! "$quick" ] && [ ${#features[@]} = 0 ]; then
  "$tools/python" $here/check_wheel.py "$wheel" >&2
  "$tools/twine" check --strict "$wheel" >&2
fi
mkdir -p "$out"
mv "$wheel" "$out/"
echo "$out/$(basename "$wheel")"
