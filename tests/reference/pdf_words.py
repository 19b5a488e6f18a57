"""Words that `kiln chunk` reads of PDF beside those of poppler's `pdftotext`.

    python pdf_words.py FILE.pdf ... --kiln KILN --model MODEL

MODEL is one whose tokens are counted, such as kiln-mini.kiln. Prints a line for each file: words that pdftotext finds, the share
of them that kiln finds (as often), the share of kiln's that pdftotext has, headings, and milliseconds of both; and all together.
What kiln leaves out on purpose (page numbers, tables of contents, heads and feet of pages) counts as missing.
"""

import argparse
import collections
import json
import re
import subprocess
import tempfile
import time
from pathlib import Path


def words(text):
    return collections.Counter(re.findall(r"\w+", text.lower()))


def by_poppler(file):
    begun = time.perf_counter()
    run = subprocess.run(["pdftotext", file, "-"], capture_output=True, text=True, errors="replace")
    return words(run.stdout), time.perf_counter() - begun


def by_kiln(args, file):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "passages.jsonl")
        command = [args.kiln, "--quiet", "chunk", "--docs", file, "--model", args.model, "--output", out, "--split", "1,0,0", "--min-tokens", "1"]
        begun = time.perf_counter()
        run = subprocess.run(command, capture_output=True, text=True)
        seconds = time.perf_counter() - begun
        if run.returncode:
            return words(""), 0, seconds, run.stderr.strip().splitlines()[-1]
        rows = [json.loads(line) for line in out.read_text().splitlines()]
    headings = {tuple(row["heading"][:depth]) for row in rows for depth in range(1, len(row.get("heading") or []) + 1)}
    # The title is one of the page's lines, or the file's own.
    lines = [row["text"] for row in rows] + [heading[-1] for heading in headings] + [rows[0].get("title") or ""]
    return words("\n".join(lines)), len(headings), seconds, ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--kiln", required=True)
    parser.add_argument("--model", required=True)
    args = parser.parse_args()
    totals = collections.Counter()
    for file in args.files:
        theirs, their_seconds = by_poppler(file)
        ours, headings, our_seconds, error = by_kiln(args, file)
        both = (theirs & ours).total()
        totals.update(theirs=theirs.total(), ours=ours.total(), both=both)
        shares = f"{both / max(theirs.total(), 1):.3f} {both / max(ours.total(), 1):.3f}"
        print(f"{file.name:45.45} {theirs.total():6} {shares} {headings:4} {1000 * our_seconds:6.0f} {1000 * their_seconds:6.0f} {error}")
    print(f"{'all':45} {totals['theirs']:6} {totals['both'] / max(totals['theirs'], 1):.3f} {totals['both'] / max(totals['ours'], 1):.3f}")


if __name__ == "__main__":
    main()
