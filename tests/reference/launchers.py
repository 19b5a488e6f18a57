#!/usr/bin/env python3
"""Starts `kiln train` by a real launcher, as train-native/SCALE.md shows it:
`launchers.py torchrun|ray|slurm FOLDER COMMAND...`.

The examples are the document's own, with this machine's paths and sizes in the place of theirs. What is trained comes into
FOLDER/torchrun, FOLDER/ray or FOLDER/slurm: one process is killed in the middle, and all are started again. SLURM runs the
document's array job, too.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
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
rank=${RANK:-$SLURM_PROCID}
again=$(grep -c "^rank $rank," "$0.started" 2> /dev/null)
echo "rank $rank, restart ${again:-0}" >> "$0.started"
if [ "$rank" = 1 ] && [ "${again:-0}" = 0 ]; then
  (
    until [ "$(wc -l < "$1/metrics.jsonl" 2> /dev/null || echo 0)" -ge 5 ]; do sleep 0.02; done
    kill -9 $$
  ) > /dev/null 2>&1 < /dev/null &
fi
shift
exec "$@"
"""


def killed_once(work, name, command):
    """What a launcher is to start in the place of the command, and what to ask when it has ended."""
    once, run = work / "once.sh", work / name
    once.write_text(KILLED_ONCE)

    def check(said):
        starts = sorted(Path(f"{once}.started").read_text().splitlines())
        expected = [f"rank {rank}, restart {restart}" for rank in (0, 1) for restart in (0, 1)]
        # A kill that came too late has left nothing to start again.
        if starts != expected:
            sys.exit(f"error: the processes were started as {starts}, not as {expected}\n{said}")
        print(f"a process was killed, and {name} started all again, once")

    return ["bash", str(once), str(run), *command, "--output", str(run), "--resume=auto"], check


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
    own, check = killed_once(work, "torchrun", command)
    launcher = [sys.executable, "-m", "torch.distributed.run", *example.split(), *own]
    done = subprocess.run(launcher, cwd=work, capture_output=True, text=True, check=False, timeout=LONGEST)
    if done.returncode:
        sys.exit(f"error: the job failed\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    check(done.stderr[-3000:])


def ray(work, command):
    example = re.search(r"Ray Train sets the variables.*?```python\n(.*?)```", GUIDE.read_text(), re.S).group(1)
    secret = work / "secret"
    secret.write_text(SECRET)
    own, check = killed_once(work, "ray", command)
    example = changed(
        example,
        {
            'command = ["kiln", "train", "--recipe", "mine.toml", "--output", "/shared/run", "--resume=auto"]': f"command = {own!r}",
            "/shared/kiln-secret": str(secret),
            "num_workers=4": "num_workers=2",
            "max_failures=10": "max_failures=1",
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
    check(done.stderr[-3000:])


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


@contextmanager
def cluster(work):
    """SLURM with one node, this machine: the variables with which its commands find it."""
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
        yield environment
    finally:
        for daemon in reversed(started):
            daemon.terminate()
        for daemon in started:
            daemon.wait(10)


def slurm(work, command):
    text = GUIDE.read_text()
    with cluster(work) as environment:
        array(work, command[0], text, environment)
        example = re.search(r"SLURM, two nodes of four GPUs:\n\n((?:    .*\n)+)", text).group(1)
        example = re.sub("^    ", "", example, flags=re.M)
        secret = work / "secret"
        secret.write_text(SECRET)
        own, check = killed_once(work, "slurm", command)
        example = changed(
            example,
            {
                "--nodes=2 --ntasks-per-node=4 --gpus-per-node=4": "--nodes=1 --ntasks-per-node=2",
                "KILN_SECRET_FILE=$HOME/kiln-secret": f"KILN_SECRET_FILE={secret}",
                '"${SLURM_RESTART_COUNT:-0}" -lt 10': '"${SLURM_RESTART_COUNT:-0}" -lt 1',
                "kiln train --recipe mine.toml --output run --resume=auto": " ".join(own),
            },
        )
        job = work / "job.sh"
        job.write_text("#!/usr/bin/env bash\n" + example)
        output = work / "slurm.out"
        batch = ["sbatch", "--parsable", "--output", output, job]
        number = subprocess.run(batch, env=environment, cwd=work, check=True, capture_output=True, text=True).stdout.strip()
        ended = time.monotonic() + LONGEST
        # SLURM lets two minutes pass before it starts a job again.
        while state := subprocess.run(["squeue", "-h", "-t", "all", "-j", number, "-o", "%T"], env=environment, check=True, capture_output=True, text=True).stdout.strip():
            if state in ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT"):
                break
            if time.monotonic() > ended:
                sys.exit(f"error: the job is {state} after {LONGEST} s\n{output.read_text()}")
            time.sleep(1)
        if state != "COMPLETED":
            sys.exit(f"error: the job is {state}\n{output.read_text() if output.exists() else ''}")
        check(output.read_text()[-3000:])


def array(work, kiln, text, environment):
    """The document's array job, which leaves what one process leaves."""
    docs = work / "docs"
    docs.mkdir()
    for file in range(7):
        rows = (f'{{"text": "passage {row} of file {file}"}}\n' for row in range(20))
        (docs / f"{file}.jsonl").write_text("".join(rows))
    model = GUIDE.parents[1] / "web-demo/kiln-mini.kiln"
    alone = [kiln, "embed", "--quiet", "--model", model, "--input", f"{docs}/", "--output", f"{work}/alone/"]
    subprocess.run(alone, check=True, timeout=LONGEST)
    _, example = re.search(r"    sbatch (--array=.*) --wrap '(.*)'\n", text).groups()
    example = changed(
        example,
        {
            "kiln embed": f"{kiln} embed",
            "--model MODEL": f"--model {model}",
            "--input docs/ --output vectors/": f"--input {docs}/ --output {work}/vectors/",
        },
    )
    batch = ["sbatch", "--wait", "--array=0-2", "--cpus-per-task=1", f"--output={work}/array-%a.out", "--wrap", example]
    done = subprocess.run(batch, env=environment, cwd=work, check=False, timeout=LONGEST, stdout=subprocess.DEVNULL)
    said = "".join(path.read_text() for path in work.glob("array-*.out"))
    if done.returncode:
        sys.exit(f"error: the array job failed\n{said}")
    files = sorted(path.name for path in (work / "alone").glob("*.parquet"))
    found = sorted(path.name for path in (work / "vectors").glob("*.parquet"))
    if found != files or any((work / "alone" / name).read_bytes() != (work / "vectors" / name).read_bytes() for name in files):
        sys.exit(f"error: the array job left {found}, not one process's {files}\n{said}")
    print(f"three tasks of an array embedded {len(files)} files, to the same bytes as one process")


if __name__ == "__main__":
    launcher, folder, *command = sys.argv[1:]
    {"torchrun": torchrun, "ray": ray, "slurm": slurm}[launcher](Path(folder), command)
