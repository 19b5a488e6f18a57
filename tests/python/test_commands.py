"""train, evaluate, quantize and run."""

import json
import multiprocessing
import os
import signal
import socket
import threading
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
from samples import REPOSITORY, SENTENCES

from kiln_embed import Embedder, KilnError, Step, evaluate, quantize, run, train

#: A model of a few thousand parameters, as a mapping.
RECIPE = {
    "name": "tiny",
    "description": "A model of a few thousand parameters",
    "seed": 5,
    "model": {
        "max_length": 24,
        "pooling": {"mode": "mean"},
        "prompts": {"query": "find: "},
        "new": {"vocab_size": 300, "hidden_size": 16, "intermediate_size": 24, "layers": 1, "heads": 2},
    },
    "stage": [
        {"name": "only", "data": ["made-up:retrieval"], "steps": 8, "batch_size": 4, "hard_negatives": 1, "lr": 1e-3}
    ],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(RECIPE, tmp_path_factory.mktemp("trained") / "run", device="cpu")


def test_a_recipe_trains_a_model(trained):
    assert [step.step for step in trained.steps] == list(range(1, 9))
    assert all(np.isfinite(step.loss) and step.tokens > 0 for step in trained.steps)
    assert trained.report.exists() and trained.best is None and trained.adapter is None
    assert Embedder(trained.model, device="cpu").encode(SENTENCES).shape == (7, 16)


def test_it_is_the_commands_training(trained, kiln, tmp_path):
    recipe = REPOSITORY / "tests/compat/v1/recipe.toml"
    ours = train(recipe, tmp_path / "ours", device="cpu", stage__1__steps=np.int64(5), **{"stage.1.lr": np.float64(2e-3)})
    kiln("train", "--recipe", recipe, "--output", tmp_path / "its", "--device", "cpu", "--quiet",
         "--set", "stage.1.steps=5", "--set", "stage.1.lr=0.002")  # fmt: skip
    its = [json.loads(line) for line in (tmp_path / "its/metrics.jsonl").read_text().splitlines()]
    assert [step.loss for step in ours.steps] == [step["loss"] for step in its] and len(its) == 5
    vectors = [Embedder(path, device="cpu").encode(SENTENCES) for path in (ours.model, tmp_path / "its/model")]
    assert np.array_equal(*vectors)


def test_each_step_is_told(trained, tmp_path):
    steps, threads = [], set()

    def on_step(step):
        steps.append(step)
        threads.add(threading.get_ident())

    done = train(RECIPE, tmp_path / "run", device="cpu", on_step=on_step)
    assert threads == {threading.get_ident()} and len(steps) == 8
    assert isinstance(steps[0], Step) and steps[0].total_steps == 8
    # The same seed trains the same model.
    assert [step.loss for step in steps] == [step.loss for step in done.steps] == [step.loss for step in trained.steps]
    assert {step.total_steps for step in [*steps, *done.steps]} == {8}


def one_of_two(rank, port, recipe, folder):
    others = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in others.items()}, KILN_SECRET="only for these tests")
    done = train(recipe, folder / str(rank), device="cpu", resume="auto")
    return done.written, [step.loss for step in done.steps]


def test_two_processes_train_together(trained, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        ranks = [pool.submit(one_of_two, rank, port, RECIPE, tmp_path) for rank in range(2)]
        (main, losses), (other, _) = [rank.result() for rank in ranks]
    assert main and not other and not (tmp_path / "1").exists()
    assert np.allclose(losses, [step.loss for step in trained.steps], rtol=1e-4)
    assert Embedder(tmp_path / "0/model", device="cpu").encode(SENTENCES).shape == (7, 16)


class Enough(Exception):
    pass


def test_an_exception_ends_it_behind_a_checkpoint_from_which_it_goes_on(tmp_path):
    def on_step(step):
        if step.step == 3:
            raise Enough

    longer = {"stage__1__steps": 300}
    whole = train(RECIPE, tmp_path / "whole", device="cpu", **longer)
    with pytest.raises(Enough):
        train(RECIPE, tmp_path / "run", device="cpu", on_step=on_step, **longer)
    assert not (tmp_path / "run/model").exists()
    with pytest.raises(KilnError, match="holds a checkpoint"):
        train(RECIPE, tmp_path / "run", device="cpu", **longer)
    steps = []
    done = train(RECIPE, tmp_path / "run", device="cpu", resume=True, on_step=steps.append, **longer)
    assert 3 < steps[0].step < 300
    # As if nothing had happened.
    assert [step.loss for step in done.steps] == [step.loss for step in whole.steps]
    vectors = [Embedder(one.model, device="cpu").encode(SENTENCES) for one in (done, whole)]
    assert np.array_equal(*vectors)


def test_ctrl_c_ends_it_behind_a_checkpoint(tmp_path):
    def on_step(step):
        if step.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(RECIPE, tmp_path / "run", device="cpu", on_step=on_step, stage__1__steps=5000)
    assert any((tmp_path / "run/checkpoints").iterdir())
    # The next training is not asked to stop.
    assert len(train(RECIPE, tmp_path / "other", device="cpu").steps) == 8


def test_one_runs_at_a_time_and_embedding_goes_on(tmp_path, embedder):
    begun, refused = threading.Event(), []

    def on_step(step):
        begun.set()
        if step.step == 5:
            embedder.encode(SENTENCES)
            with pytest.raises(KilnError, match="running in this process already"):
                train(RECIPE, tmp_path / "second", device="cpu")
            refused.append(step)

    train(RECIPE, tmp_path / "first", device="cpu", on_step=on_step)
    assert begun.is_set() and len(refused) == 1 and not (tmp_path / "second").exists()


def test_a_model_is_evaluated_as_the_command_does(trained, kiln, tmp_path):
    data = tmp_path / "sts.jsonl"
    rows = [
        {"sentence1": a, "sentence2": b, "score": i % 6}
        for i, (a, b) in enumerate(zip(SENTENCES[:5] * 3, SENTENCES[2:5] * 5))
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ours = evaluate(trained.model, data, "sts", device="cpu", no_cache=True)
    its = kiln("eval", "--device", "cpu", "--quiet", "--json", "-m", trained.model, "--task", "sts", "--data", data,
               "--no-cache")  # fmt: skip
    its = json.loads(its.stdout)
    # Times differ.
    assert {key: ours[key] for key in ours if "second" not in key} == {
        key: its[key] for key in its if "second" not in key
    }
    # Of a suite one task, by its name or in a list.
    suite = tmp_path / "suite.toml"
    suite.write_text("".join(f'[[task]]\nname = "{name}"\nkind = "sts"\npath = "sts.jsonl"\n' for name in ["One", "Two"]))
    for only in ["Two", ["Two"]]:
        found = evaluate(trained.model, tmp_path, suite=suite, only=only, device="cpu", output=tmp_path / str(len(only)))
        assert [task["task"] for task in found["tasks"]] == ["Two"]


def test_a_model_is_quantized(trained, tmp_path, capfd):
    done = quantize(trained.model, tmp_path / "small.kiln", "int8:8", device="cpu", tensor="embed_*=f16")
    assert done["cosine"] > 0.99 and 0 < done["bytes"] <= (tmp_path / "small.kiln").stat().st_size
    full, small = (Embedder(path, device="cpu") for path in (trained.model, tmp_path / "small.kiln"))
    assert small.similarity_pairwise(full.encode(SENTENCES[:5]), small.encode(SENTENCES[:5])).min() > 0.98
    with pytest.raises((KilnError, FileExistsError)):
        quantize(trained.model, tmp_path / "small.kiln", "int8:8", device="cpu")
    quantize(trained.model, tmp_path / "small.kiln", "int8:8", device="cpu", overwrite=True)
    # Functions print nothing.
    assert capfd.readouterr() == ("", "")


def test_trained_heads_say_which_latents_and_layers_they_used(tmp_path):
    recipe = {**RECIPE, "model": {**RECIPE["model"], "pooling": {
        "mode": "latent_attention", "latents": 4, "heads": 2, "feed_forward": "geglu"
    }}}  # fmt: skip
    why = Embedder(train(recipe, tmp_path / "run", device="cpu", stage__1__steps=1).model, device="cpu").explain("a boat")
    assert why.latents.shape == (2, len(why.tokens), 4) and why.latents.dtype == np.float32
    assert np.allclose(why.latents.sum(axis=2), 1, atol=1e-4) and why.layers is None


def test_any_other_command_gives_what_it_prints(trained):
    found = run("inspect", model=trained.model)
    assert isinstance(found, dict) and "16" in json.dumps(found)
    assert {recipe["name"] for recipe in run("recipes")} >= {"quickstart", "nv-embed-small"}
    pairs = run("similarity", "a boat", "a ship", model=trained.model, device="cpu")
    a, b = Embedder(trained.model, device="cpu").encode(["a boat", "a ship"])
    assert np.isclose(pairs[0]["cosine"], a @ b, atol=1e-5)
    # What Python takes for ends of lines, and JSON does not.
    text = "one\u2028two\u0085three"
    assert run("similarity", text, "a ship", model=trained.model, device="cpu")[0]["a"] == text
