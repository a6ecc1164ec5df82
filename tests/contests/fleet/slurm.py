"""A Slurm of one node on the loopback interface, with a munge of its own; everything it writes is in one folder."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
CONF = """\
ClusterName=kinfolk
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket
CredType=cred/munge
SlurmctldPort={controller}
SlurmdPort={daemon}
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=1,sched_interval=2
ReturnToService=2
KillWait=5
NodeName=localhost NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""


def lacking() -> str:
    """Say why there can be no Slurm here; "" if there can."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"needs Debian's slurm-wlm and munge: {', '.join(missing)} not found" if missing else ""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(home: Path) -> Iterator[Path]:
    """Start munged, slurmctld and slurmd; give the path of slurm.conf, and end them."""
    for name in ("state", "spool"):
        (home / name).mkdir(parents=True)
    home.chmod(0o755)
    key = home / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    conf = home / "slurm.conf"
    conf.write_text(CONF.format(home=home, controller=free_port(), daemon=free_port()))
    environment = os.environ | {"SLURM_CONF": str(conf)}
    files = [f"--{name}={home}/munge.{end}" for name, end in (("key-file", "key"), ("pid-file", "pid"))]
    files += [f"--{name}={home}/munge.{end}" for name, end in (("log-file", "log"), ("seed-file", "seed"))]
    commands = [
        ["munged", "--foreground", "--force", f"--socket={home}/munge.socket", *files],
        ["slurmctld", "-D", "-f", str(conf)],
        ["slurmd", "-D", "-N", "localhost", "-f", str(conf)],
    ]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with (home / f"{command[0]}.out").open("wb") as out:
                processes.append(subprocess.Popen(command, stdout=out, stderr=out, env=environment))
            time.sleep(1.0)
        _wait_until_idle(environment, home)
        yield conf
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in reversed(processes):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_idle(environment: dict[str, str], home: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        asked = subprocess.run(
            ["sinfo", "--noheader", "--format=%t"], capture_output=True, text=True, env=environment, check=False
        )
        if asked.stdout.strip() == "idle":
            return
        time.sleep(0.5)
    logs = "\n".join(file.read_text(errors="replace")[-500:] for file in sorted(home.glob("*.out")))
    raise RuntimeError(f"Slurm did not start: {asked.stdout} {asked.stderr}\n{logs}")
