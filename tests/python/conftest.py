"""What the tests of the Python package share."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from samples import REPOSITORY

# Where the tests run in the background, Ctrl-C is ignored from the start, and Python leaves it so.
signal.signal(signal.SIGINT, signal.default_int_handler)

@pytest.fixture(scope="session")
def embedder():
    from kiln_embed import Embedder

    return Embedder(device="cpu")


@pytest.fixture(scope="session")
def prompted():
    """A tiny model with a prompt, in f32."""
    from kiln_embed import Embedder

    return Embedder(REPOSITORY / "tests/compat/v1/model", device="cpu")


@pytest.fixture(scope="session")
def kiln():
    """Runs the command `kiln` of the package."""
    command = Path(sys.executable).with_name("kiln")

    def run(*arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(command), *map(str, arguments)], capture_output=True, text=True, check=check, timeout=300
        )

    return run


@pytest.fixture
def python():
    """Runs a program in an interpreter of its own."""

    def run(program: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        )

    return run
