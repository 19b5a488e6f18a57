#!/usr/bin/env bash
# Fuzzes what reads strangers' bytes, each target until ten minutes or a million cases are over:
#
#   tests/fuzz.sh [SECONDS [CASES [TARGET ..]]]      (600, 1000000, all targets)
#
# Not part of the test command, which replays the corpus instead. Building takes as long as a release;
# libFuzzer needs an unstable flag, which RUSTC_BOOTSTRAP=1 lets the stable compiler take. A found case
# is printed with its path; once mended, it goes to tests/fuzz/corpus/TARGET/, so that it stays so.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-600} cases=${2:-1000000}
shift $(($# < 2 ? $# : 2))
cache="${KILN_CACHE:-$HOME/.cache/kiln}"
if [ ! -x "$cache/cargo-fuzz/bin/cargo-fuzz" ]; then
  cargo install --quiet cargo-fuzz --debug --root "$cache/cargo-fuzz"
fi
export RUSTC_BOOTSTRAP=1
fuzz=("$cache/cargo-fuzz/bin/cargo-fuzz" fuzz)
# The versions that the program is built with.
cp Cargo.lock tests/fuzz/Cargo.lock
target=$(rustc -vV | sed -n 's/^host: //p')
"${fuzz[@]}" build --fuzz-dir tests/fuzz --target "$target" --sanitizer none

targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(sed -n 's/^name = "\(.*\)"$/\1/p' tests/fuzz/Cargo.toml | tail -n +2)
failed=0
for name in "${targets[@]}"; do
  # What libFuzzer adds goes to a folder of its own; the kept corpus stays small.
  grown="tests/fuzz/target/corpus/$name"
  mkdir -p "$grown"
  log="tests/fuzz/target/$name.log"
  status=0
  "tests/fuzz/target/$target/release/$name" "$grown" "tests/fuzz/corpus/$name" \
    -artifact_prefix="tests/fuzz/target/found-$name-" -max_total_time="$seconds" -runs="$cases" \
    -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=1024 -print_final_stats=1 > "$log" 2>&1 || status=$?
  ran=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  rate=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")
  printf '%-18s %10s cases, %7s a second, exit %s\n' "$name" "${ran:-?}" "${rate:-?}" "$status"
  if [ "$status" != 0 ]; then
    failed=1
    grep -m1 -A3 -E 'panicked|ERROR: libFuzzer' "$log" || true
    grep 'Test unit written to' "$log" || true
  fi
done
exit "$failed"
