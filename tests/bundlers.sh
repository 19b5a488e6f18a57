#!/usr/bin/env bash
# Builds the examples of wasm/examples with their bundlers, opens each in Chromium, on WebGPU's software adapter too, and tries
# what kiln-embed is for Orama and LangChain.js with these.
#
#   tests/bundlers.sh [vite] [webpack] [next] [astro] [integrations]     (all by default)
#
# Only vite is in the test command: all of them are some 700 MB from npm. Needs what `tests/browser.sh build` leaves.
set -euo pipefail
cd "$(dirname "$0")/.."

cache="${KILN_CACHE:-$HOME/.cache/kiln}"
export PATH="$cache/node-24/node_modules/.bin:$PATH"
work="$cache/bundlers"
mkdir -p "$work"
rm -f "$work"/kiln-embed-*.tgz
npm pack --silent --pack-destination "$work" "$PWD"/wasm/pkg{,-webgpu,-train} >/dev/null
# That of pkg, pkg-webgpu or pkg-train.
tarball() { echo "$work/kiln-embed${1#pkg}"-[0-9]*.tgz; }
export NEXT_TELEMETRY_DISABLED=1 ASTRO_TELEMETRY_DISABLED=1

# The example, with the packages from their tarballs, as npm would give them.
build() {
  local here="$work/$1" package
  mkdir -p "$here"
  # What an earlier run installed stays.
  find "$here" -mindepth 1 -maxdepth 1 ! -name node_modules ! -name package-lock.json -exec rm -rf {} +
  cp -r "wasm/examples/$1/." "$here/"
  for package in pkg pkg-webgpu pkg-train; do
    sed -i "s|file:../../$package\"|file:$(tarball "$package")\"|" "$here/package.json"
  done
  # The same version with other contents would be taken from the lock file.
  rm -rf "$here/package-lock.json" "$here"/node_modules/kiln-embed*
  echo "bundlers: npm install for $1"
  npm install --silent --no-fund --no-audit --prefix "$here"
  local public="$here/public"
  [ "$1" != webpack ] || public="$here"
  mkdir -p "$public"
  cp web-demo/kiln-mini.kiln "$public/model.kiln"
  echo "bundlers: build of $1"
  npm run --silent --prefix "$here" build
}

integrations() {
  local here="$work/integrations"
  mkdir -p "$here"
  cp tests/browser/bundlers/integrations.mjs "$here/"
  echo '{ "private": true, "type": "module" }' >"$here/package.json"
  rm -rf "$here/package-lock.json" "$here"/node_modules/kiln-embed*
  npm install --silent --no-fund --no-audit --prefix "$here" @orama/orama@3 @langchain/core@1 @langchain/classic@1 typescript @types/node@24 \
    "$(tarball pkg)" "$(tarball pkg-webgpu)" "$(tarball pkg-train)"
  (cd "$here" && node integrations.mjs "$OLDPWD/web-demo/kiln-mini.kiln")
}

built=()
for part in "${@:-vite webpack next astro integrations}"; do
  for one in $part; do
    case "$one" in
      vite | webpack | next | astro)
        build "$one"
        built+=("$one")
        ;;
      integrations) integrations ;;
      *)
        echo "bundlers.sh: unknown part $one" >&2
        exit 2
        ;;
    esac
  done
done
[ "${#built[@]}" = 0 ] || KILN_BUILT="${built[*]}" KILN_BUNDLERS="$work" KILN_PLAYWRIGHT="$cache/npm" KILN_CHROMIUM="$(command -v chromium)" \
  node --test tests/browser/bundlers/*.test.mjs
