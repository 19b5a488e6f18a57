#!/usr/bin/env bash
# What is shipped, run by chroot in a system as old as can be had: Debian 11, with glibc 2.31 and CPython 3.9. The command
# and the wheel have to compute there what they compute here, bit for bit.
#
#   tests/old_root.sh [RELEASE_BINARY] [WHEEL]      a minute or two; - leaves one of them out
#                                                   [default: what release.sh and build.sh leave in target/]
#
# Not part of the test command: it needs root, what is shipped takes long to build, and the first run makes a root folder of
# 260 MB in KILN_CACHE, in some minutes. What was built for this machine alone fails there.
# Releases promise glibc 2.28; Debian 10, which has it, is on archive.debian.org alone (with a Python too old for the wheel). Not tried:
#   OLD_ROOT=buster OLD_MIRROR=http://archive.debian.org/debian tests/old_root.sh RELEASE_BINARY -
# NUMPY names the versions to try the wheel with (default: the oldest that it allows, and the newest that this Python has).
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
binary=${1:-target/release-files/kiln-$version-x86_64-linux/kiln}
wheel=${2:-target/wheels/kiln_embed-$version-cp39-abi3-manylinux_2_28_x86_64.whl}
present() { # FILE WHAT MADE_BY
  [ "$1" = - ] || [ -f "$1" ] || {
    echo "old_root: $1: no such file; $3 makes it, or name another $2, or - for none" >&2
    exit 1
  }
}
present "$binary" command train-native/packaging/release.sh
present "$wheel" wheel train-native/python/build.sh
if [ "$(id -u)" != 0 ]; then
  echo "skipped: chroot takes root"
  exit 0
fi

export KILN_CACHE="${KILN_CACHE:-$HOME/.cache/kiln}" OLD_ROOT="${OLD_ROOT:-bullseye}"
tests/setup.sh old_root
root=$KILN_CACHE/roots/$OLD_ROOT
# In the root folder, so that both sides see the same files; nothing is mounted.
scratch=$(mktemp -d -p "$root/tmp" kiln.XXXXXX)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/here" "$scratch/there"

plain=(PATH=/usr/local/bin:/usr/bin:/bin HOME=/tmp LANG=C.UTF-8)
here() { env -i -C "$scratch" "${plain[@]}" "$@"; }
there() { chroot "$root" /usr/bin/env -i -C "/tmp/${scratch##*/}" "${plain[@]}" "$@"; }

cp web-demo/kiln-mini.kiln tests/reference/old_root.py "$scratch/"
cp -r tests/fixtures/rerankers "$scratch/"
{
  awk '/^[^#]/ && ++rows <= 100' web-demo/collection.md
  printf '%s\n' 'a' 'ein Boot auf dem Fluß' 'ボートが川を下る' '🚢 at sea — “far out”'
} >"$scratch/texts.txt"
query='why do leaves turn yellow in autumn'

of_command() { # RUN FOLDER
  "$1" ./kiln embed --model kiln-mini.kiln --input texts.txt --output "$2/command.npy" --device cpu --quiet
  "$1" ./kiln search --model kiln-mini.kiln --corpus texts.txt --query "$query" --device cpu --json >"$scratch/$2/search.json"
  "$1" ./kiln quickstart --steps 0.01 --output "$2/quickstart" --device cpu --quiet >"$scratch/$2/quickstart.txt"
}
of_wheel() { # RUN FOLDER
  "$1" "$2/venv/bin/kiln" embed --model kiln-mini.kiln --input texts.txt --output "$2/script.npy" --device cpu --quiet
  "$1" "$2/venv/bin/python" old_root.py package texts.txt "$2"
}
same() { python3 tests/reference/old_root.py same "$scratch/here" "$scratch/there" "$@"; }

python=$(there python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
echo "== here: $(ldd --version | sed -n 1p)"
echo "== there: Debian $(cat "$root/etc/debian_version"), $(there ldd --version | sed -n 1p), $(there python3 --version)"

if [ "$binary" != - ]; then
  echo "== the command: $binary"
  cp "$binary" "$scratch/kiln"
  there ./kiln --version
  of_command there there
  of_command here here
  same command.npy search.json
  python3 tests/reference/hosts.py same "$scratch/here/quickstart" "$scratch/there/quickstart"

  # Older than promised: what happens is only said.
  if tests/setup.sh glibc_2_27; then
    cp "$binary" "$KILN_CACHE/roots/glibc-2.27/kiln"
    said=$(chroot "$KILN_CACHE/roots/glibc-2.27" /kiln --version 2>&1) && starts=starts || starts='does not start'
    rm -f "$KILN_CACHE/roots/glibc-2.27/kiln"
    echo "over glibc 2.27, which is not promised, it $starts: ${said%%$'\n'*}"
  fi
fi

if [ "$wheel" != - ]; then
  echo "== the wheel: $wheel"
  cp "$wheel" "$scratch/"
  python3 -m venv "$scratch/here/venv"
  pip=("$scratch/here/venv/bin/pip" --disable-pip-version-check -q)
  "${pip[@]}" install "$wheel"
  of_wheel here here
  there python3 -m venv there/venv
  for numpy in ${NUMPY:-numpy==1.21.0 numpy}; do
    # The root folder has no network.
    "${pip[@]}" download --no-deps --only-binary :all: --python-version "$python" --implementation cp \
      --platform manylinux2014_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_28_x86_64 \
      --dest "$scratch/packages" "$numpy"
    there there/venv/bin/pip --disable-pip-version-check -q install --upgrade --no-index --find-links packages "$numpy" "./${wheel##*/}"
    there there/venv/bin/kiln --version
    rm -f "$scratch/there/script.npy"
    of_wheel there there
    same script.npy vectors.f32 scores.f32 hits.json texts.kidx
  done
fi
echo "old_root: what was run there gave the numbers that it gives here"
