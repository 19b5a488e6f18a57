#!/usr/bin/env bash
# Makes the release of the command for x86-64 Linux: one binary for every system with glibc 2.28 or later (RHEL 8,
# Debian 10, Ubuntu 18.10), with its manual pages, completions and licences, checksums, and bills of materials; and of the
# library what crates.io would be sent.
#
#   train-native/packaging/release.sh [FOLDER]         (default: target/release-files)
#
# tests/old_root.sh runs what it made in Debian 11 (glibc 2.31).
#
# Zig, from PyPI, links against the old glibc. CUDA and Vulkan are in it and are looked for when it runs.
# KILN_FEATURES chooses others than `all`.
set -euo pipefail
cd "$(dirname "$0")/../.."

out="${1:-target/release-files}"
cache="${KILN_CACHE:-$HOME/.cache/kiln}"
target=x86_64-unknown-linux-gnu
glibc=2.28
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
name="kiln-$version-x86_64-linux"

if [ ! -e "$cache/zig/.complete" ]; then
  python3 -m venv "$cache/zig"
  "$cache/zig/bin/pip" install -q --disable-pip-version-check cargo-zigbuild ziglang
  touch "$cache/zig/.complete"
fi
PATH="$cache/zig/bin:$PATH" cargo zigbuild --profile dist --locked -p train-native --bin kiln --features "${KILN_FEATURES:-all}" \
  --target "$target.$glibc"
binary="${CARGO_TARGET_DIR:-target}/$target/dist/kiln"

# The newest symbols that it asks a system for.
newest=$(objdump -T "$binary" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
if [ "$(printf '%s\n' "GLIBC_$glibc" "$newest" | sort -V | tail -n 1)" != "GLIBC_$glibc" ]; then
  echo "release: the binary asks for $newest, newer than GLIBC_$glibc" >&2
  exit 1
fi
echo "release: newest symbol $newest"

rm -rf "${out:?}/$name"
mkdir -p "$out/$name/completions" "$out/$name/man1"
install -m 755 "$binary" "$out/$name/kiln"
strip "$out/$name/kiln"
cp LICENSE-APACHE LICENSE-MIT CHANGELOG.md train-native/README.md train-native/packaging/kiln.service "$out/$name/"
"$out/$name/kiln" man --quiet --output "$out/$name/man1" >/dev/null
"$out/$name/kiln" completions bash >"$out/$name/completions/kiln.bash"
"$out/$name/kiln" completions zsh >"$out/$name/completions/_kiln"
"$out/$name/kiln" completions fish >"$out/$name/completions/kiln.fish"

# The same files make the same bytes.
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime='2020-01-01 00:00Z' -C "$out" -cf - "$name" | gzip -9n >"$out/$name.tar.gz"
tests/sbom.sh "$out/sbom"
# Nothing of it is compiled again; cargo refuses what its manifest lacks, and what is not committed.
cargo package --locked --no-verify -p kiln-embed
cp "${CARGO_TARGET_DIR:-target}/package/kiln-embed-$version.crate" "$out/"
(cd "$out" && sha256sum "$name.tar.gz" "kiln-embed-$version.crate" sbom/*.json >SHA256SUMS)
sum=$(sha256sum "$out/$name.tar.gz" | cut -d' ' -f1)
sed -e "s/@VERSION@/$version/g" -e "s/@SHA256@/$sum/g" train-native/packaging/kiln.rb.in >"$out/kiln.rb"
ls -l "$out"
