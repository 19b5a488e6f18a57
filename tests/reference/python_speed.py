"""What the Python package costs beside the command: run with the Python of an environment that has its wheel.

    python python_speed.py WHEEL [--model MODEL] [--texts N] [--rounds N]

Prints JSON: the wheel's bytes; seconds from an empty environment to the first vector; milliseconds of
`import kiln_embed`; and seconds for the same texts by `Embedder.encode` and by `kiln embed` of the same wheel, in turn,
whose vectors have to be the same bits.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import numpy as np

from kiln_embed import Embedder

WORDS = (
    "the river floods lower streets and a violinist from small town plays where granite walls stand long way up while "
    "ship carried tea timber through wet meadows of pale blue petals beside portrait in hall"
).split()


def texts(count):
    """Texts of 3 to 42 words, all different."""
    return [
        " ".join(WORDS[(row * 7 + i * (1 + row % 5)) % len(WORDS)] for i in range(3 + row * 13 % 40)) + f" {row}"
        for row in range(count)
    ]


def first_vector(wheel):
    """Seconds to make an environment, install the wheel and what it needs (from pip's cache), and embed."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        venv.create(folder, with_pip=True)
        made = time.perf_counter()
        python = Path(folder, "bin/python")
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel], check=True)
        subprocess.run([python, "-c", "from kiln_embed import Embedder; Embedder().encode('a boat')"], check=True)
        return {"environment": made - begun, "install_and_embed": time.perf_counter() - made}


def import_time(rounds):
    """Milliseconds that the import adds to an interpreter, the median of some."""

    def run(program):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", program], check=True)
        return 1000 * (time.perf_counter() - begun)

    def added(program):
        return statistics.median(run(program) - run("pass") for _ in range(rounds))

    return {"import kiln_embed": added("import kiln_embed"),
            "from kiln_embed import Embedder": added("from kiln_embed import Embedder"),
            "import numpy": added("import numpy")}  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--model", default="kiln-mini")
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    kiln = Path(sys.executable).with_name("kiln")
    embedder = Embedder(arguments.model, device="cpu")
    model = arguments.model
    if model == "kiln-mini":
        import kiln_embed

        model = Path(kiln_embed.__file__).with_name("kiln-mini.kiln")
    rows = texts(arguments.texts)
    encode, command = [], []
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "texts.jsonl"), Path(folder, "vectors.npy")
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
        embedder.encode(rows[:200])
        for _ in range(arguments.rounds):
            begun = time.perf_counter()
            vectors = embedder.encode(rows)
            encode.append(time.perf_counter() - begun)
            said = subprocess.run(
                [kiln, "embed", "--device", "cpu", "--quiet", "--json", "-m", model, "-i", source, "-o", target],
                check=True, capture_output=True, text=True,
            )  # fmt: skip
            # Without the time to start and to load, which the other has not either.
            command.append(json.loads(said.stdout)["seconds"])
            if not np.array_equal(vectors, np.load(target)):
                sys.exit("error: the two give different vectors")
            target.unlink()
    print(json.dumps({
        "wheel_bytes": arguments.wheel.stat().st_size,
        "first_vector_seconds": first_vector(arguments.wheel.resolve()),
        "import_milliseconds": import_time(9),
        "texts": len(rows),
        "encode_seconds": encode,
        "command_seconds": command,
        "overhead": statistics.median(encode) / statistics.median(command) - 1,
        "overhead_of_the_fastest": min(encode) / min(command) - 1,
    }, indent=2))  # fmt: skip


if __name__ == "__main__":
    main()
