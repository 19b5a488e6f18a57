#!/usr/bin/env python3
"""Starts `kiln train` by a real launcher, as train-native/SCALE.md shows it:
`launchers.py torchrun|ray|slurm FOLDER COMMAND...`.

The examples are the document's own, with this machine's paths and sizes in the place of theirs. What is trained comes into
FOLDER/torchrun, FOLDER/ray or FOLDER/slurm. By torchrun one process is killed in the middle, and all are started again.
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
# Seconds of a job; one that takes longer hangs.
LONGEST = 900


def changed(text, changes):
    """The text with each change made, all of which have to be possible."""
    for old, new in changes.items():
        if old not in text:
            sys.exit(f"error: SCALE.md's example has no {old!r} any more; change tests/reference/launchers.py with it")
        text = text.replace(old, new)
    return text


# The process of rank 1 is killed once, when rank 0 has noted some steps; that of each start is written down.
KILLED_ONCE = """
echo "rank $RANK, restart $TORCHELASTIC_RESTART_COUNT" >> "$0.started"
if [ "$RANK" = 1 ] && [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then
  (
    until [ "$(wc -l < "$1/metrics.jsonl" 2> /dev/null || echo 0)" -ge 5 ]; do sleep 0.02; done
    kill -9 $$
  ) > /dev/null 2>&1 < /dev/null &
fi
shift
exec "$@"
"""


def torchrun(work, command):
    example = re.search(r"    torchrun (--nnodes.*\n.*)\n", GUIDE.read_text()).group(1).replace("\\\n", " ")
    example = changed(
        example,
        {
            "--nnodes 2 --nproc-per-node 4 --max-restarts 10": "--nproc-per-node 2 --max-restarts 1",
            "--rdzv-backend c10d --rdzv-endpoint node0:29500": "--standalone",
            "kiln train --recipe mine.toml --output run --resume=auto": "",
        },
    )
    once, run = work / "once.sh", work / "torchrun"
    once.write_text(KILLED_ONCE)
    own = ["bash", str(once), str(run), *command, "--output", str(run), "--resume=auto"]
    launcher = [sys.executable, "-m", "torch.distributed.run", *example.split(), *own]
    done = subprocess.run(launcher, cwd=work, capture_output=True, text=True, check=False, timeout=LONGEST)
    if done.returncode:
        sys.exit(f"error: the job failed\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    starts = sorted(Path(f"{once}.started").read_text().splitlines())
    expected = [f"rank {rank}, restart {restart}" for rank in (0, 1) for restart in (0, 1)]
    # A kill that came too late has left nothing to start again.
    if starts != expected:
        sys.exit(f"error: the processes were started as {starts}, not as {expected}\n{done.stderr[-3000:]}")
    print("a process was killed, and torchrun started all again, once")


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
            # What fails here is to be seen.
            "max_failures=10": "max_failures=0",
        },
    )
    path = work / "ray_train.py"
    path.write_text(example)
    environment = {key: value for key, value in os.environ.items() if key != "KILN_SECRET"}
    # It says much.
    done = subprocess.run(
        [sys.executable, path], env=environment, cwd=work, capture_output=True, text=True, check=False, timeout=LONGEST
    )
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
            # What fails here is to be seen.
            '"${SLURM_RESTART_COUNT:-0}" -lt 10': '"${SLURM_RESTART_COUNT:-0}" -lt 0',
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
        batch = ["sbatch", "--wait", "--output", output, job]
        done = subprocess.run(batch, env=environment, cwd=work, check=False, timeout=LONGEST)
        if done.returncode:
            sys.exit(f"error: the job failed\n{output.read_text() if output.exists() else ''}")
    finally:
        for daemon in reversed(started):
            daemon.terminate()
        for daemon in started:
            daemon.wait(10)


if __name__ == "__main__":
    launcher, folder, *command = sys.argv[1:]
    {"torchrun": torchrun, "ray": ray, "slurm": slurm}[launcher](Path(folder), command)
