#!/usr/bin/env bash
# What the dependency tree may hold (deny.toml): licences, sources, banned crates, no two versions of
# those that must be one.
#
#   tests/deny.sh [advisories]     with `advisories` also what RustSec says, whose database git fetches
set -euo pipefail
cd "$(dirname "$0")/.."

tests/setup.sh deny
deny=$(printf "%s\n" "${KILN_CACHE:-$HOME/.cache/kiln}"/cargo-deny-*/bin/cargo-deny | sort -V | tail -n 1)

# The crates of every platform, so that the check itself needs no network.
cargo fetch --quiet --locked
"$deny" --locked --offline check bans licenses sources
if [ "${1:-}" = advisories ]; then
  "$deny" --locked check advisories
else
  echo 'SKIPPED: advisories, whose database is fetched by git; tests/deny.sh advisories checks them'
fi
