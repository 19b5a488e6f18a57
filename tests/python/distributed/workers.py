"""Workers that die: a module of their own, so that they are found in the workers' processes."""

import os
import signal
from pathlib import Path

import ray

from kiln_embed.integrations.ray import KilnEmbedder


def once(path) -> bool:
    """Whether this is the first process, of all, to ask."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class Marked(KilnEmbedder):
    """Leaves a file for each batch that it begins, with its node's name, and dies in the third one of all, if it may."""

    def __init__(self, folder: str, dies: bool = False, **settings):
        super().__init__(**settings)
        self.folder, self.dies = Path(folder), dies
        self.node = ray.get_runtime_context().get_node_id()
        self.folder.joinpath(f"worker-{os.getpid()}-{os.environ['RAYON_NUM_THREADS']}").touch()

    def __call__(self, batch):
        begun = len(list(self.folder.glob("batch-*")))
        self.folder.joinpath(f"batch-{self.node}-{os.getpid()}-{begun}").touch()
        if self.dies and begun >= 2 and once(self.folder / "died"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(batch)


class Dying:
    """For Spark: the first worker that comes to its second batch dies there."""

    def __init__(self, embed, folder: str):
        self.embed, self.folder = embed, folder

    def __call__(self, batches):
        def watched():
            for number, batch in enumerate(batches):
                if number == 1 and once(Path(self.folder) / "died"):
                    os.kill(os.getpid(), signal.SIGKILL)
                yield batch

        return self.embed(watched())
