#!/usr/bin/env python3
"""What tests/hosts.sh asks of runs: whether two have the same numbers, and steps' times beside the arithmetic."""

import json
import statistics
import struct
import sys
from pathlib import Path


def steps(run):
    return [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]


def parameters(run):
    """Number of values of a model's file, by its safetensors header."""
    with open(Path(run) / "model" / "model.safetensors", "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    count = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            size = 1
            for extent in tensor["shape"]:
                size *= extent
            count += size
    return count


def same(one, other):
    """Loss and gradient of each step; a large one may be farther away, by as much as it is larger."""
    pairs = list(zip(steps(one), steps(other), strict=True))
    assert pairs, f"{one}: has no step"
    far = {
        field: max(abs(a[field] - b[field]) / max(abs(a[field]), 1) for a, b in pairs)
        for field in ("loss", "grad_norm")
    }
    loss, norm = far.values()
    print(f"{other}: {len(pairs)} steps, losses within {loss:.1e} and norms of the gradient within {norm:.1e} of {one}'s")
    # In this order, so that what is not a number fails, too.
    assert loss < 1e-5 and norm < 1e-5, far


def rates(work, skip):
    """A step's time at each rate: measured, and that without a limit with what the bytes take at the rate."""
    bits = {"mbit": 1e6, "gbit": 1e9}
    runs = sorted(Path(work).glob("rate-*"))
    median = {run.name: statistics.median(step["seconds"] for step in steps(run)[skip:]) for run in runs}
    print(f"{'hosts':>5} {'rate':>8} {'format':>6} {'MB sent':>8} {'arithmetic':>10} {'measured':>8}")
    for run in runs:
        _, hosts, rate, form = run.name.split("-")
        values = parameters(run)
        size = 4 if form == "f32" else 2
        sent = 2 * (int(hosts) - 1) / int(hosts) * values * size
        free = median[f"rate-{hosts}-none-{form}"]
        if rate == "none":
            expected = "-"
        else:
            number = float(rate[:-4]) * bits[rate[-4:]]
            expected = f"{free + 8 * sent / number:.3f}"
        print(f"{hosts:>5} {rate:>8} {form:>6} {sent / 1e6:8.1f} {expected:>10} {median[run.name]:8.3f}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["same", one, other]:
            same(one, other)
        case ["rates", work, skip]:
            rates(work, int(skip))
        case _:
            sys.exit(__doc__)
