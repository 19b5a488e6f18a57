#!/usr/bin/env bash
# Builds the demo into web-demo/dist: the page, kiln-embed with its add-ons, and the bundled model. With --serve it is
# then served at http://localhost:8080 (or the port that is named after it).
set -euo pipefail
cd "$(dirname "$0")/.."
# What runs beside it ends with it.
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

out=web-demo/dist
rm -rf "$out.new"
mkdir -p "$out.new"

# In shells of their own: wasm/build.sh sets the environment itself.
compiled() (
  . tests/wasm-env.sh
  # The page is made smaller still, as it is downloaded; for tests (KILN_WASM_OPT) of the crates that the package has, too.
  page=()
  if [ -z "${KILN_WASM_OPT:-}" ]; then
    for setting in 'lto=true' 'codegen-units=1' 'panic="abort"'; do
      page+=(--config "profile.$wasm_profile.$setting")
    done
  fi
  "${wasm_cargo[@]}" build --profile "$wasm_profile" "${page[@]}" "${wasm_flags[@]}" -p kiln-web-demo
)
packed() (
  . tests/wasm-env.sh
  "$wasm_bindgen/wasm-bindgen" --target web --no-typescript --out-name demo --out-dir "$out.new" \
    "$wasm_built/kiln-web-demo.wasm"
  "$cache/binaryen/node_modules/.bin/wasm-opt" "${KILN_WASM_OPT:--Os}" --enable-simd --enable-bulk-memory --enable-sign-ext \
    --enable-nontrapping-float-to-int --enable-mutable-globals --enable-reference-types --enable-multivalue \
    "$out.new/demo_bg.wasm" -o "$out.new/small.wasm"
  mv "$out.new/small.wasm" "$out.new/demo_bg.wasm"
)
compiled
# Takes one processor, while the package is compiled.
packed &
packing=$!
wasm/build.sh
wait "$packing"

cp web-demo/static/* web-demo/kiln-mini.kiln "$out.new/"
cp -r wasm/pkg "$out.new/kiln-embed"
for one in webgpu train; do cp -r "wasm/pkg-$one" "$out.new/kiln-embed-$one"; done
rm -rf "$out"
mv "$out.new" "$out"
du -sh "$out" | sed 's/\t/ in /'

if [ "${1:-}" = --serve ]; then
  exec python3 -m http.server --directory "$out" --bind 127.0.0.1 "${2:-8080}"
fi
