"""tests/reference/papers.py, with a command in the place of `kiln` that writes what it would, of no model."""

import json
import os
import shlex
import shutil
import subprocess
import sys

import pytest
from samples import REPOSITORY

pytest.importorskip("tomllib", reason="papers.py is for Python 3.11")

SCRIPT = REPOSITORY / "tests/reference/papers.py"
SHIPPED = REPOSITORY / "train-native/recipes/experiments"

KILN = """
import json, os, pathlib, sys
words = [word for word in sys.argv[1:] if word not in ("--quiet", "--json")]
with open(os.environ["SAID"], "a") as said:
    said.write(json.dumps(words) + "\\n")
KINDS = ("Retrieval", "STS", "Classification", "Clustering")
def value(name):
    return pathlib.Path(words[words.index(name) + 1])
if words == ["--version"]:
    print("kiln 0.0.0")
elif words[0] == "train":
    (value("--output") / "model").mkdir(parents=True)
    points = [{"stage": 0, "step": step, "seconds": 1.0, "loss": 2.0, "scores": None} for step in (1, 2)]
    points[1]["scores"] = [["squad", 0.5], *([f"mean {kind}", 0.25] for kind in KINDS)]
    (value("--output") / "metrics.jsonl").write_text("".join(json.dumps(point) + "\\n" for point in points))
elif words[0] == "prune":
    value("--output").mkdir(parents=True)
else:
    tasks = []
    for kind in KINDS:
        tasks.append({"task": f"Own {kind}", "type": kind, "main_score": 0.5})
        parts = value("--output") / "model/1/parts" / f"{kind}.json"
        parts.parent.mkdir(parents=True, exist_ok=True)
        parts.write_text(json.dumps({"task": {"name": f"Own {kind}"}, "parts": {"values": [0.25, 0.75]}}))
    print(json.dumps({"tasks": tasks, "failed": [], "skipped": []}))
"""


class Papers:
    """The script, over copies of the sweeps and claims, with results of their own."""

    def __init__(self, folder):
        self.folder, self.experiments = folder, folder / "experiments"
        self.experiments.mkdir()
        for file in SHIPPED.glob("*.toml"):
            shutil.copy(file, self.experiments)
        (folder / "work/data").mkdir(parents=True)
        (folder / "work/data/counts.json").write_text("{}")
        kiln = folder / "kiln"
        kiln.write_text(f"#!{sys.executable}\n{KILN}")
        kiln.chmod(0o755)

    def __call__(self, *words, fails=False):
        command = [sys.executable, SCRIPT, *words, "--experiments", self.experiments]
        if words[0] == "run":
            command += ["--kiln", self.folder / "kiln", "--work", self.folder / "work"]
            command += ["--model", self.folder, "--teacher", self.folder]
        done = subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, timeout=120,
            env={**os.environ, "SAID": str(self.folder / "said.jsonl")},
        )  # fmt: skip
        assert (done.returncode != 0) == fails, done.stderr
        return done

    def state(self, cell):
        line = next(line for line in self("list").stdout.splitlines() if line.split()[0] == cell)
        return line[31:55].strip()

    def result(self, cell):
        return json.loads((self.experiments / f"results/{cell}-1.json").read_text())

    def said(self, what):
        """Commands that were given since this was last asked."""
        file = self.folder / "said.jsonl"
        found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        file.unlink(missing_ok=True)
        return [words for words in found if words[0] == what]

    def change(self, sweep, old, new):
        file = self.experiments / f"{sweep}.toml"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))


@pytest.fixture
def papers(tmp_path):
    return Papers(tmp_path)


def test_a_cell_whose_settings_changed_is_run_again_if_asked(papers):
    run = ["run", "--only", "no-reconstruction"]
    assert papers.state("no-reconstruction") == ""
    papers(*run)
    assert papers.state("no-reconstruction") == "done"
    before = papers.result("no-reconstruction")
    assert before["mean"] == 50.0 and before["along"][0][2]["STS"] == 25.0
    assert len(papers.said("train")) == 1
    # What is done is done, also where one asks for what has changed.
    papers(*run, "--again")
    assert papers.said("train") == []

    papers.change("anchor", "eval.every=15", "eval.every=25")
    assert papers.state("no-reconstruction") == "done, by other settings"
    assert papers.state("only-q2d") == ""
    kept = papers(*run)
    assert "no-reconstruction, seed 1: done, by other settings; --again runs it anew" in kept.stderr
    assert papers.said("train") == [] and papers.result("no-reconstruction") == before
    # The table has it still.
    assert "| no-reconstruction | 1 | **50.0** |" in papers("table").stdout

    papers(*run, "--again")
    [command] = papers.said("train")
    # Not the model of before: nothing is gone on with.
    assert "eval.every=25" in command and command[-1] == "--overwrite"
    assert papers.state("no-reconstruction") == "done"
    after = papers.result("no-reconstruction")
    assert shlex.split(after["commands"][0])[1:] == command[: command.index("--checkpoint-every")]
    # The other seed is another cell's.
    papers(*run, "--seeds", "2")
    assert len(papers.said("train")) == 1


def test_a_model_that_is_made_is_made_again_by_another_command(papers):
    run = ["run", "--only", "magnitude", "--again"]
    papers(*run)
    assert len(papers.said("prune")) == 1
    # A result that a command of before made: with fewer tokens to calibrate on.
    result = papers.result("magnitude")
    result["commands"][0] = result["commands"][0].replace("8192", "4096")
    (papers.experiments / "results/magnitude-1.json").write_text(json.dumps(result))
    (papers.folder / "work/models/magnitude.command").write_text(result["commands"][0])
    assert papers.state("magnitude") == "done, by other settings"
    papers(*run)
    assert len(papers.said("prune")) == 1 and papers.state("magnitude") == "done"


def test_the_shipped_cells_claims_and_results_belong_together(papers):
    listed = subprocess.run([sys.executable, SCRIPT, "list"], capture_output=True, text=True)
    assert listed.returncode == 0, listed.stderr
    cells = [line.split()[0] for line in listed.stdout.splitlines()]
    assert len(cells) == len(set(cells))
    results = [json.loads(file.read_text()) for file in (SHIPPED / "results").glob("*.json")]
    assert results and {result["cell"] for result in results} <= set(cells)
    table = subprocess.run([sys.executable, SCRIPT, "table"], capture_output=True, text=True)
    assert table.returncode == 0, table.stderr
    for result in results:
        assert "mean" not in result or f"\n| {result['cell']} | " in table.stdout, result["cell"]

    # A claim about a cell that is not there; a cell that nothing runs.
    papers.change("claims", 'b = "no-reconstruction"', 'b = "no-such-cell"')
    assert "no-such-cell" in papers("list", fails=True).stderr
    shutil.copy(SHIPPED / "claims.toml", papers.experiments)
    papers.change("frame", 'name = "untrained-eos-causal"', 'name = "untrained-last"')
    assert "untrained-last" in papers("list", fails=True).stderr
