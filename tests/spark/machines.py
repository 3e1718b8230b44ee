"""A standalone Spark cluster on this machine: its master and workers have addresses and folders of their own."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyspark

from spark_conf.java import java_command
from tests.processes import wait_until
from tests.spark.java import QUICK_JAVA

# With one address executors would read each other's files, and Spark would never start a second copy of a task.
ADDRESSES = {"master": "127.0.0.1", "driver": "127.0.0.1", "one": "127.0.0.2", "two": "127.0.0.3"}
NAMES = ("one", "two")
SPARK = Path(pyspark.__file__).parent


@dataclass(frozen=True, kw_only=True)
class SparkCluster:
    """Spark's master, and what the driver has to know."""

    master: str
    environment: dict[str, str]


class Machines:
    """Processes of a Spark cluster, each in a folder of its own below ``folder``."""

    def __init__(
        self,
        folder: Path,
        after: contextlib.ExitStack,
        *,
        spark: Path = SPARK,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._spark = spark
        self._environment = environment or {}
        self._after = after
        self._java = str(Path(java_command()).resolve().parent.parent)

    def start(
        self, name: str, words: Sequence[str | Path], hidden: Sequence[Path] = ()
    ) -> subprocess.Popen[bytes]:
        """A process on the machine of this name, which has nothing in the folders that are hidden."""
        home = self._folder / name
        home.mkdir(exist_ok=True)
        for each in ("tmp", "local"):
            (home / each).mkdir(exist_ok=True)
        # Nothing of the tests' own environment, in which Python and Spark are told where things are.
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "TMPDIR": str(home / "tmp"),
            "JAVA_HOME": self._java,
            "SPARK_HOME": str(self._spark),
            "SPARK_LOCAL_DIRS": str(home / "local"),
            "SPARK_LOCAL_IP": ADDRESSES[name],
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_JAVA} -Dspark.master.rest.enabled=false",
            **self._environment,
        }
        with (home / "log").open("ab") as log:
            process = subprocess.Popen(
                [*without(hidden), *words],
                stdout=log,
                stderr=log,
                env=environment,
                cwd=home,
                start_new_session=True,
            )
        self._after.callback(end, process)
        return process

    def start_master(self, port: int) -> str:
        """Answers its address, once it listens."""
        self.start("master", [*self._role("master.Master", "master"), "--port", str(port)])
        wait_until("Spark's master", listens(port))
        return f"spark://127.0.0.1:{port}"

    def start_worker(self, name: str, master: str, hidden: Sequence[Path] = ()) -> int:
        """A machine with room for one executor of one core; answers the process that starts that."""
        limits = ["--cores", "1", "--memory", "600m", "--work-dir", "work"]
        words = [*self._role("worker.Worker", name), *limits, master]
        return self.start(name, words, hidden).pid

    def _role(self, program: str, name: str) -> list[str | Path]:
        begin: list[str | Path] = [
            self._spark / "bin" / "spark-class",
            f"org.apache.spark.deploy.{program}",
        ]
        return [*begin, "--host", ADDRESSES[name], "--webui-port", "0"]

    def logs(self) -> str:
        """The ends of all of them."""
        found = {name: self._folder / name / "log" for name in ADDRESSES}
        return "\n".join(
            f"--- {name}\n{log.read_text(errors='replace')[-4000:]}"
            for name, log in found.items()
            if log.exists()
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """End its executors as well, which are in its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


def without(hidden: Sequence[Path]) -> list[str]:
    """What a command begins with that is to find these folders empty."""
    if not hidden:
        return []
    mounts = "".join(f"mount -t tmpfs none {shlex.quote(str(each))}; " for each in hidden)
    namespace = ["unshare", "--mount"] + ([] if os.getuid() == 0 else ["--user", "--map-root-user"])
    return [*namespace, "sh", "-ec", f'{mounts}exec "$@"', "sh"]


def are_permitted(folder: Path) -> bool:
    """Whether this machine lets us hide folders, and has the tools for it."""
    try:
        tried = [*without([folder]), "true"]
        return subprocess.run(tried, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def listens(port: int) -> Callable[[], bool]:
    def tried() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    return tried
