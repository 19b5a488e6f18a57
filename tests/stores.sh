#!/usr/bin/env bash
# `kiln embed`, `index` and `search` over object stores, each a server on loopback: jobs in shares, a job that is killed, the
# bytes that a folder gets, and what is said where something is wrong.
#
#   tests/stores.sh [s3] [gs] [az] [http]    half a minute; 220 MB from npm and PyPI
#
# s3 is moto's, az Azurite, http wsgidav. gs is moto's S3 with what Google's XML API has beside it (tests/reference/gs.py): gcp-storage-emulator
# and fake-gcs-server do not speak enough of it. Nobody here asks for a key of Google's.
# It takes the release's binary where there is one, else the tests' (or the one that KILN_NATIVE names).
set -euo pipefail
cd "$(dirname "$0")/.."

. tests/binary.sh
export KILN_CACHE="${KILN_CACHE:-$HOME/.cache/kiln}"
tests/setup.sh s3 stores
python3 tests/reference/stores.py "$binary" "$@"
