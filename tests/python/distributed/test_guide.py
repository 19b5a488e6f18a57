"""The guides' programs, as they stand there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset
import pytest
from corpus import REPOSITORY, check

GUIDES = [
    ("train-native/SCALE.md", "## Ray, Daft and Spark", "## What 10^9"),
    ("train-native/python/README.md", "## On many", "## What it"),
]


def programs():
    for name, begin, end in GUIDES:
        text = (REPOSITORY / name).read_text()
        part = text[text.index(begin) : text.index(end)]
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", part, re.DOTALL)):
            yield pytest.param(block, id=f"{Path(name).name}-{number}")


@pytest.mark.parametrize("program", list(programs()))
def test_a_program_of_a_guide_runs(program, docs, vectors, tmp_path, request, expected):
    (tmp_path / "docs").symlink_to(docs)
    (tmp_path / "vectors").symlink_to(vectors)
    if "postgresql://" in program:
        program = program.replace("postgresql://localhost/passages", request.getfixturevalue("server"))
    # Two actors of one CPU each leave none for what reads and writes on a machine of two.
    program = program.replace("import ray\n", "import ray\n\nray.init(num_cpus=4)\n", 1)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for folder in tmp_path.glob("vectors-*"):
        check(pyarrow.dataset.dataset(folder, format="parquet").to_table(), expected)
    if "search(" in program or "query_points(" in program or "order by" in program:
        assert "eggs" in done.stdout, done.stdout
