# Which command kiln to test, for the scripts that source it from the project's root: the one that KILN_NATIVE names, else the
# release's, else the tests'. Sets binary.

binary=${KILN_NATIVE:-}
for built in target/release/kiln target/quick/kiln; do
  if [ -z "$binary" ] && [ -x "$built" ]; then binary=$PWD/$built; fi
done
if [ -z "$binary" ]; then
  echo "error: no binary; cargo build --release -p train-native first, or name one by KILN_NATIVE" >&2
  exit 1
fi
