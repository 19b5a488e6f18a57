#!/usr/bin/env bash
# Writes the bills of materials (CycloneDX, JSON) of the command and of the npm packages: every crate that
# is compiled into them, with its version, sum and licence. The same Cargo.lock gives the same bytes on
# every machine.
#
#   tests/sbom.sh [FOLDER]     (default: target/sbom)
set -euo pipefail
cd "$(dirname "$0")/.."

cache="${KILN_CACHE:-$HOME/.cache/kiln}"
out="${1:-target/sbom}"
version=0.5.9
tool="$cache/cargo-cyclonedx-$version"
[ -x "$tool/bin/cargo-cyclonedx" ] ||
  cargo install --quiet --locked cargo-cyclonedx --version "$version" --root "$tool"
# CycloneDX's own schema.
schema="$cache/cyclonedx"
if [ ! -e "$schema/.complete" ]; then
  python3 -m venv "$schema"
  "$schema/bin/pip" install -q --disable-pip-version-check 'cyclonedx-python-lib[json-validation]>=11'
  touch "$schema/.complete"
fi
mkdir -p "$out"

# It writes beside every manifest of the workspace.
name=kiln-sbom
trap 'rm -f -- */"$name.json" */*/"$name.json"' EXIT
# Without a time and a number of its own.
export SOURCE_DATE_EPOCH=0

# sbom PACKAGE TARGET [FEATURES]: what cargo compiles for a target.
sbom() {
  local features="${3:-default}"
  "$tool/bin/cargo-cyclonedx" cyclonedx --manifest-path "$1/Cargo.toml" --format json --spec-version 1.5 \
    --target "$2" --features "$features" --all --override-filename "$name" --quiet --quiet
  cargo tree --locked --manifest-path "$1/Cargo.toml" --target "$2" --features "$features" \
    --edges normal,build --prefix none --format '{p}' | sed 's/ (.*//' | sort -u >"$out/compiled"
  "$schema/bin/python" - "$1/$name.json" "$out" <<'PYTHON'
import json, sys
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

source, out = Path(sys.argv[1]), Path(sys.argv[2])
compiled = set((out / "compiled").read_text().split("\n"))
(out / "compiled").unlink()
bom = json.loads(source.read_text())
# What is only in the lock file, for features that are not asked for, is in no product.
bom["components"] = [c for c in bom["components"] if f"{c['name']} v{c['version']}" in compiled]
kept = {c["bom-ref"] for c in bom["components"]} | {bom["metadata"]["component"]["bom-ref"]}
bom["dependencies"] = [
    {**d, "dependsOn": [ref for ref in d.get("dependsOn", []) if ref in kept]}
    for d in bom["dependencies"] if d["ref"] in kept
]
for fleeting in ["timestamp"]:
    bom["metadata"].pop(fleeting, None)
bom.pop("serialNumber", None)
root = Path.cwd().as_posix()
text = json.dumps(bom, indent=1, sort_keys=True).replace(f"file://{root}", "file://kiln") + "\n"
assert root not in text, "a path of this machine"
error = JsonStrictValidator(SchemaVersion.V1_5).validate_str(text)
if error:
    sys.exit(f"{source}: not CycloneDX: {error}")
target = out / f"{bom['metadata']['component']['name']}.cdx.json"
target.write_text(text)
print(f"{target}: {len(bom['components'])} crates, {len(text)} bytes")
PYTHON
}

# What prebuilt packages have: all backends.
sbom train-native x86_64-unknown-linux-gnu all
# All builds of the page.
sbom wasm wasm32-unknown-unknown default,train,threads
