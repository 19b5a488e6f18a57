"""What the Python package costs beside the command: run with the Python of an environment that has its wheel.

    python python_speed.py WHEEL [--model MODEL] [--texts N] [--rounds N]

Prints JSON: the wheel's bytes; seconds from an empty environment to the first vector; milliseconds of
`import kiln_embed`; and seconds for the same texts by `Embedder.encode` and by `kiln embed` of the same wheel, in turn,
whose vectors have to be the same bits. Beside them stand seconds of the processor, all cores together, which say more
where others use the machine too; those of the command are without what it takes for a single text.
"""

import argparse
import json
import resource
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


def processor(who):
    """Seconds of the processor so far."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


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
    encode, command, encode_cpu, command_cpu = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "texts.jsonl"), Path(folder, "vectors.npy")
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
        one = Path(folder, "one.jsonl")
        one.write_text(json.dumps({"text": rows[0]}) + "\n")

        def embed(file):
            used = processor(resource.RUSAGE_CHILDREN)
            said = subprocess.run(
                [kiln, "embed", "--device", "cpu", "--quiet", "--json", "-m", model, "-i", file, "-o", target],
                check=True, capture_output=True, text=True,
            )  # fmt: skip
            vectors = np.load(target)
            target.unlink()
            return vectors, json.loads(said.stdout)["seconds"], processor(resource.RUSAGE_CHILDREN) - used

        embedder.encode(rows[:200])
        for _ in range(arguments.rounds):
            begun, used = time.perf_counter(), processor(resource.RUSAGE_SELF)
            vectors = embedder.encode(rows)
            encode.append(time.perf_counter() - begun)
            encode_cpu.append(processor(resource.RUSAGE_SELF) - used)
            # Without the time to start and to load, which the other has not either.
            theirs, seconds, cpu = embed(source)
            command.append(seconds)
            command_cpu.append(cpu - embed(one)[2])
            if not np.array_equal(vectors, theirs):
                sys.exit("error: the two give different vectors")
    print(json.dumps({
        "wheel_bytes": arguments.wheel.stat().st_size,
        "first_vector_seconds": first_vector(arguments.wheel.resolve()),
        "import_milliseconds": import_time(9),
        "texts": len(rows),
        "encode_seconds": encode,
        "command_seconds": command,
        "overhead": statistics.median(encode) / statistics.median(command) - 1,
        "encode_processor_seconds": encode_cpu,
        "command_processor_seconds": command_cpu,
        "processor_overhead": statistics.median(encode_cpu) / statistics.median(command_cpu) - 1,
    }, indent=2))  # fmt: skip


if __name__ == "__main__":
    main()
