"""Windows of words over files of text, half of each shared with the next: passages in any number, for measurements of size.

    python windows.py [--words 16] [--limit 1000000] FILE_OR_FOLDER ... > passages.jsonl

Reads .txt, .md, .jsonl and .tsv, also .gz and .zst (by `zstdcat`), in the order of their names; of JSON lines all strings, one
after the other. A window that has been there is left out, and so is a line that is no JSON.
"""

import argparse
import gzip
import json
import subprocess
import sys
from pathlib import Path

KINDS = {".txt", ".md", ".jsonl", ".tsv"}


def files(paths):
    for path in map(Path, paths):
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in inside:
            packed = file.suffix in {".gz", ".zst"}
            if (file.with_suffix("") if packed else file).suffix in KINDS:
                yield file


def lines(file):
    match file.suffix:
        case ".zst":
            data = subprocess.run(["zstdcat", file], check=True, capture_output=True).stdout
        case ".gz":
            data = gzip.decompress(file.read_bytes())
        case _:
            data = file.read_bytes()
    return data.decode("utf-8", "replace").split("\n")


def texts(file):
    of_json = ".jsonl" in file.suffixes
    for line in lines(file):
        if not of_json:
            yield line
            continue
        try:
            row = json.loads(line)
        except ValueError:
            continue
        for value in row.values():
            yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str))


def windows(paths, size):
    for file in files(paths):
        words = []
        for text in texts(file):
            words += text.split()
            while len(words) >= size:
                yield " ".join(words[:size])
                del words[: size // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--words", type=int, default=16)
    parser.add_argument("--limit", type=int, default=1_000_000)
    args = parser.parse_args()
    seen = set()
    for text in windows(args.paths, args.words):
        if len(seen) == args.limit:
            break
        if text not in seen:
            seen.add(text)
            sys.stdout.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    print(f"{len(seen)} passages", file=sys.stderr)


if __name__ == "__main__":
    main()
