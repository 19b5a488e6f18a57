"""What is installed: commands, types, kiln-mini; and how long it takes to be there."""

import re
import resource
import subprocess
import sys
from importlib import metadata
from importlib.resources import files
from pathlib import Path

import pytest
from samples import REPOSITORY

import kiln_embed


def test_it_is_the_installed_package():
    assert REPOSITORY not in Path(kiln_embed.__file__).parents
    assert kiln_embed.__version__ == metadata.version("kiln-embed")


def test_kiln_mini_and_types_are_inside():
    inside = files("kiln_embed")
    ours = (REPOSITORY / "web-demo/kiln-mini.kiln").read_bytes()
    assert inside.joinpath("kiln-mini.kiln").read_bytes() == ours
    assert inside.joinpath("py.typed").is_file() and inside.joinpath("_native.pyi").is_file()


@pytest.mark.parametrize("command", [["kiln"], ["kiln-embed"], ["-m", "kiln_embed"]])
def test_the_command_is_there(command):
    if command[0] == "-m":
        command = [sys.executable, *command]
    else:
        command = [str(Path(sys.executable).with_name(command[0]))]
    said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
    assert said == f"kiln {kiln_embed.__version__}\n"
    wrong = subprocess.run([*command, "embed", "--nonsense"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "--nonsense" in wrong.stderr and wrong.stdout == ""
    wrong = subprocess.run([*command, "inspect", "-m", "no/such/model"], capture_output=True, text=True)
    assert wrong.returncode == 1 and wrong.stderr.startswith("error: no/such/model") and "\n" == wrong.stderr[-1]


def test_a_reader_that_goes_away_ends_the_command_quietly(tmp_path):
    (tmp_path / "texts.txt").write_text("a boat\n" * 20_000)
    kiln = Path(sys.executable).with_name("kiln")
    model = REPOSITORY / "tests/compat/v1/model"
    line = f"'{kiln}' embed --device cpu -q -m '{model}' -i '{tmp_path}/texts.txt' -o - | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "" and "embedding" in done.stdout


def test_a_whole_answer_goes_through_a_pipe(tmp_path):
    (tmp_path / "texts.txt").write_text("a boat\n" * 3000)
    kiln = Path(sys.executable).with_name("kiln")
    model = REPOSITORY / "tests/compat/v1/model"
    line = f"'{kiln}' embed --device cpu -q -m '{model}' -i '{tmp_path}/texts.txt' -o - | wc -l"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True)
    assert done.stdout.strip() == "3000"


def test_an_import_is_light(python):
    done = python("import sys, kiln_embed; print(sorted({'numpy', 'kiln_embed._native'} & set(sys.modules)))")
    assert done.stdout == "[]\n"

    def seconds(program):
        # Of the processor: others may use the machine too.
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", program], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    added = [seconds("import kiln_embed") - seconds("pass") for _ in range(5)]
    assert min(added) < 0.15, added


def test_public_things_say_what_they_are():
    for name in kiln_embed.__all__:
        thing = getattr(kiln_embed, name)
        if name == "__version__":
            continue
        assert thing.__doc__, name
        if isinstance(thing, type):
            for member, value in vars(thing).items():
                if not member.startswith("_") and callable(value):
                    assert value.__doc__, f"{name}.{member}"


def test_the_readme_names_only_what_is_there():
    readme = (REPOSITORY / "train-native/python/README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert blocks
    for block in blocks:
        compile(block, "README.md", "exec")
        for names in re.findall(r"^from kiln_embed import (.+)$", block, re.MULTILINE):
            for name in names.split(","):
                assert hasattr(kiln_embed, name.strip()), name
