#!/usr/bin/env bash
# Serves kiln-mini under attack for half an hour, in 1 GB of memory, while others are to be served well:
#
#   tests/soak.sh [SECONDS]      (1800)
#
# Not part of the test command. It takes the release's binary where there is one, else the tests' (or the one
# that KILN_NATIVE names). Prints one JSON object; fails where a good request was lost or answered wrongly, or
# the server grew beyond its memory or ended. The limit is a control group's where one can be made, else it is
# only watched: `ulimit -v` counts what an allocator reserves and never uses.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-1800}
. tests/binary.sh
exec python3 tests/reference/soak.py "$binary" web-demo/kiln-mini.kiln "$seconds"
