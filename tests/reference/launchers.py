#!/usr/bin/env python3
"""Starts `kiln train` by a real launcher, as train-native/SCALE.md shows it: `launchers.py ray|slurm FOLDER COMMAND...`.

The examples are the document's own, with this machine's paths and sizes in the place of theirs. What is trained comes into
FOLDER/ray or FOLDER/slurm.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

GUIDE = Path(__file__).resolve().parents[2] / "train-native/SCALE.md"
SECRET = "only for these tests"


def changed(text, changes):
    """The text with each change made, all of which have to be possible."""
    for old, new in changes.items():
        if old not in text:
            sys.exit(f"error: SCALE.md's example has no {old!r} any more; change tests/reference/launchers.py with it")
        text = text.replace(old, new)
    return text


def ray(work, command):
    example = re.search(r"Ray Train sets the variables.*?```python\n(.*?)```", GUIDE.read_text(), re.S).group(1)
    secret = work / "secret"
    secret.write_text(SECRET)
    # Ray runs its workers elsewhere.
    own = [*command, "--output", str(work / "ray"), "--resume=auto"]
    example = changed(
        example,
        {
            'command = ["kiln", "train", "--recipe", "mine.toml", "--output", "/shared/run", "--resume=auto"]': f"command = {own!r}",
            "/shared/kiln-secret": str(secret),
            "num_workers=4": "num_workers=2",
        },
    )
    path = work / "ray_train.py"
    path.write_text(example)
    environment = {key: value for key, value in os.environ.items() if key != "KILN_SECRET"}
    # It says much.
    done = subprocess.run([sys.executable, path], env=environment, cwd=work, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: the job failed\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


CONFIG = """
ClusterName=kiln
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
StateSaveLocation={work}/state
SlurmdSpoolDir={work}/spool
SlurmctldPidFile={work}/slurmctld.pid
SlurmdPidFile={work}/slurmd.pid
SlurmctldLogFile={work}/slurmctld.log
SlurmdLogFile={work}/slurmd.log
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE
"""


def slurm(work, command):
    text = GUIDE.read_text()
    example = re.search(r"SLURM, two nodes of four GPUs:\n\n((?:    .*\n)+)", text).group(1)
    example = re.sub("^    ", "", example, flags=re.M)
    secret = work / "secret"
    secret.write_text(SECRET)
    own = " ".join([*command, "--output", str(work / "slurm"), "--resume=auto"])
    example = changed(
        example,
        {
            "--nodes=2 --ntasks-per-node=4 --gpus-per-node=4": "--nodes=1 --ntasks-per-node=2",
            "KILN_SECRET_FILE=$HOME/kiln-secret": f"KILN_SECRET_FILE={secret}",
            "kiln train --recipe mine.toml --output run --resume=auto": own,
        },
    )
    job = work / "job.sh"
    job.write_text("#!/usr/bin/env bash\n" + example)
    host = socket.gethostname().split(".")[0]
    config = work / "slurm.conf"
    config.write_text(CONFIG.format(host=host, work=work, cpus=os.cpu_count()))
    for folder in ("state", "spool"):
        (work / folder).mkdir()
    environment = {key: value for key, value in os.environ.items() if key != "KILN_SECRET"} | {"SLURM_CONF": str(config)}
    started = []
    try:
        if subprocess.run(["munge", "-n"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode:
            Path("/run/munge").mkdir(exist_ok=True)
            shutil.chown("/run/munge", "munge", "munge")
            started.append(subprocess.Popen(["runuser", "-u", "munge", "--", "munged", "--foreground"], stderr=subprocess.DEVNULL))
        for daemon in ("slurmctld", "slurmd"):
            started.append(subprocess.Popen([daemon, "-D"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        for _ in range(60):
            state = subprocess.run(["sinfo", "-h", "-o", "%t"], env=environment, capture_output=True, text=True, check=False).stdout
            if "idle" in state:
                break
            time.sleep(1)
        else:
            sys.exit(f"error: SLURM has no idle node\n{(work / 'slurmctld.log').read_text()[-2000:]}")
        output = work / "slurm.out"
        done = subprocess.run(["sbatch", "--wait", "--output", output, job], env=environment, cwd=work, check=False)
        if done.returncode:
            sys.exit(f"error: the job failed\n{output.read_text() if output.exists() else ''}")
    finally:
        for daemon in reversed(started):
            daemon.terminate()
        for daemon in started:
            daemon.wait(10)


if __name__ == "__main__":
    launcher, folder, *command = sys.argv[1:]
    {"ray": ray, "slurm": slurm}[launcher](Path(folder), command)
