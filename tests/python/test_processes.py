"""Threads, forks, pickles and Ctrl-C."""

import copy
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from samples import REPOSITORY, SENTENCES, many

from kiln_embed import Embedder, Index


def test_two_threads_share_a_model(embedder):
    texts = [many(120)[i::8] for i in range(8)]
    expected = [embedder.encode(part) for part in texts]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            for ours, alone in zip(pool.map(embedder.encode, texts), expected):
                assert np.array_equal(ours, alone)


def test_the_interpreter_goes_on_while_a_model_computes(embedder):
    texts, beats, done = many(800), 0, threading.Event()

    def work():
        embedder.encode(texts)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        beats += 1
        time.sleep(0.001)
    thread.join()
    assert beats > 20


def test_many_threads_read_and_write_an_index():
    index, rows = Index(16), np.random.default_rng(0).normal(size=(400, 16)).astype(np.float32)
    with ThreadPoolExecutor(8) as pool:
        added = list(pool.map(index.add, np.array_split(rows, 40)))
        found = list(pool.map(lambda row: index.search(row, k=1).scores[0], rows))
    # Each call's rows are its own.
    assert sorted(row for part in added for row in part) == list(range(400)) and len(index) == 400
    for part, these in zip(added, np.array_split(rows, 40)):
        assert np.array_equal(np.stack([index.vector(row) for row in part]), these)
    assert (np.array(found) >= (rows * rows).sum(axis=1) * 0.999).all()


def test_pickles_are_names_and_settings(embedder):
    data = pickle.dumps(embedder)
    assert len(data) < 1000
    for other in [pickle.loads(data), copy.deepcopy(embedder)]:
        assert repr(other) == repr(embedder)
        assert np.array_equal(other.encode(SENTENCES), embedder.encode(SENTENCES))
    index = Index.from_vectors(np.eye(4), "binary+int8")
    assert np.array_equal(pickle.loads(pickle.dumps(index)).vector(2), index.vector(2))


def embed_in_child(embedder, texts):
    return embedder.encode(texts)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_embed_whatever_way_they_were_started(embedder, method):
    texts = many(100)
    expected = embedder.encode(texts)  # Its threads run before the fork.
    with multiprocessing.get_context(method).Pool(2) as pool:
        parts = pool.starmap_async(embed_in_child, [(embedder, texts[:50]), (embedder, texts[50:])])
        assert np.array_equal(np.concatenate(parts.get(timeout=120)), expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_of_a_fork_has_all_of_it(embedder):
    texts = many(40)
    expected = embedder.encode(texts)
    index = Index.from_vectors(expected)

    def works():
        rows = index.search(embedder.encode(texts), k=1).rows[:, 0]
        return np.array_equal(embedder.encode(texts), expected) and rows.tolist() == list(range(40))

    def fork(depth):
        child = os.fork()
        if child == 0:
            signal.alarm(120)
            try:
                good = works() and (depth == 0 or fork(depth - 1))
            finally:
                os._exit(0 if good else 1)
        return os.waitpid(child, 0)[1] == 0

    assert fork(2) and works()


def interrupt_after(seconds):
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    return timer


def test_ctrl_c_ends_a_long_call_and_the_next_one_works(embedder):
    texts, begun = many(400), time.monotonic()
    embedder.encode(texts)
    part = time.monotonic() - begun
    timer, begun = interrupt_after(0.2), time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        embedder.encode(texts * 200)
    timer.join()
    # Far from all of it, however slow the machine is.
    assert time.monotonic() - begun < 40 * part + 5
    assert embedder.encode(SENTENCES).shape == (7, 384)


def test_a_signal_handler_of_the_programs_own_is_called(embedder):
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.append(True))
    try:
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        assert embedder.encode(many(800)).shape == (800, 384)
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [True]


def test_ctrl_c_ends_the_command(kiln, tmp_path):
    import subprocess
    from pathlib import Path

    process = subprocess.Popen(
        [Path(sys.executable).with_name("kiln"), "train", "--recipe", "nv-embed-small", "--device", "cpu", "--quiet",
         "--output", tmp_path / "run"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    metrics = tmp_path / "run/metrics.jsonl"
    for _ in range(600):
        if metrics.exists() and metrics.stat().st_size > 0:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in said
    assert (tmp_path / "run/checkpoints").is_dir()


def test_a_program_ends_while_a_thread_computes(python):
    done = python(
        "import threading; from samples import many; from kiln_embed import Embedder\n"
        "embedder = Embedder(device='cpu')\n"
        "threading.Thread(target=embedder.encode, args=(many(800),), daemon=True).start()\n"
    )
    assert done.returncode == 0 and done.stderr == ""


def test_models_are_freed(python):
    done = python(
        "import resource; from kiln_embed import Embedder\n"
        f"model = {str(REPOSITORY / 'web-demo/kiln-mini.kiln')!r}\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for _ in range(3): Embedder(model, device='cpu', weights='f32').encode('a')\n"
        "first = peak()\n"
        "for _ in range(6): Embedder(model, device='cpu', weights='f32').encode('a')\n"
        "print(peak() - first)\n"
    )
    # Each has 26 MB of weights.
    assert done.returncode == 0 and int(done.stdout) < 60_000, done
