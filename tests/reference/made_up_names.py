#!/usr/bin/env python3
"""A collection whose questions use names that nobody has seen, for `wasm/lessons/tests/gain.rs`: `made_up_names.py FOLDER`.

Each of 100 passages of the demo gets a name of made-up syllables, under which two lessons ask for it; two questions in other
words do so afterwards. Can what was taught find the passage?"""

import gzip
import json
import random
import sys
from pathlib import Path

COLLECTION = Path(__file__).resolve().parents[2] / "web-demo/collection.md"
SYLLABLES = ["zor", "gle", "bli", "vak", "mun", "tro", "fep", "qui", "dax", "lum", "ska", "wib"]
TAUGHT = ["what is {}", "{} explained"]
ASKED = ["tell me about {}", "{} for beginners"]

folder = Path(sys.argv[1])
(folder / "qrels").mkdir(parents=True, exist_ok=True)
passages = [part.strip() for part in COLLECTION.read_text().split("\n## ")[1:]]
draw = random.Random(1)
names = set()
while len(names) < 100:
    names.add("".join(draw.sample(SYLLABLES, 3)))
places = draw.sample(range(len(passages)), 100)
named = list(zip(sorted(names), places))

with open(folder / "corpus.jsonl", "w") as corpus:
    for number, passage in enumerate(passages):
        corpus.write(json.dumps({"_id": f"p{number}", "title": "", "text": passage}) + "\n")
with gzip.open(folder / "train.jsonl.gz", "wt") as lessons:
    for number, (name, place) in enumerate(named):
        for form, words in enumerate(TAUGHT):
            row = {"query": words.format(name), "pos": [passages[place]], "id": f"{number}-{form}"}
            lessons.write(json.dumps(row) + "\n")
with open(folder / "queries.jsonl", "w") as queries, open(folder / "qrels/dev.tsv", "w") as judged:
    judged.write("query-id\tcorpus-id\tscore\n")
    for number, (name, place) in enumerate(named):
        for form, words in enumerate(ASKED):
            queries.write(json.dumps({"_id": f"q{number}-{form}", "text": words.format(name)}) + "\n")
            judged.write(f"q{number}-{form}\tp{place}\t1\n")
