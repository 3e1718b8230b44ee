"""What a process tree used, and what the rest of the machine was doing meanwhile. Linux only (/proc)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
# Of a broker that nobody asks for anything.
RESTING_CORES = 0.15


def children(pid: int) -> list[int]:
    """``pid`` and all that it started."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in task.read_text().split():
                found += children(int(child))
        except OSError:
            continue
    return found


def _times(pid: int) -> float:
    """User and system seconds of a process, those of its reaped children included."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return sum(int(w) for w in words[11:15]) / TICKS


def cpu_seconds(pids: list[int]) -> float:
    return sum(_times(pid) for pid in pids)


def resident_mib(pids: list[int]) -> float:
    """Sum of the resident sets; pages that the processes share count once a process."""
    total = 0.0
    for pid in pids:
        try:
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmRSS"):
                    total += int(line.split()[1]) / 1024
        except OSError:
            continue
    return total


def _busy() -> float:
    """Seconds that all cores together were busy since boot."""
    words = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, soft, steal = (int(w) for w in words[:8])
    return (user + nice + system + irq + soft + steal) / TICKS


@dataclass(slots=True)
class Use:
    """Filled when the block ends: wall seconds, CPU seconds of the watched, cores used by everything else."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    background_load: float = 0.0


@contextmanager
def watching(pids: list[int]) -> Iterator[Use]:
    """CPU of ``pids`` during the block. What neither they nor this process and its children used is background."""
    use = Use()
    everybody = sorted({*pids, *children(os.getpid())})
    busy, mine, watched, began = (
        _busy(),
        cpu_seconds(everybody),
        cpu_seconds(pids),
        time.monotonic(),
    )
    yield use
    use.wall_s = time.monotonic() - began
    use.cpu_s = cpu_seconds(pids) - watched
    use.background_load = max(0.0, _busy() - busy - (cpu_seconds(everybody) - mine)) / use.wall_s


def rest(pids: list[int], *, window_s: float, timeout_s: float) -> None:
    """Wait until processes have next to nothing to do: what they do of themselves is then no part of a measurement.

    Raises:
        TimeoutError: they went on.
    """
    deadline = time.monotonic() + timeout_s
    used = window_s
    while used > RESTING_CORES * window_s:
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {pids} used {used / window_s:.2f} cores to the last")
        before = cpu_seconds(pids)
        time.sleep(window_s)
        used = cpu_seconds(pids) - before


def bare_write_s_per_gb(folder: Path) -> float:
    """CPU seconds a GB of nothing but writing 1 MiB at a time to a new file: what the kernel takes of any broker.

    On a virtual machine a page that the guest has not touched lately is expensive, and a log is made of such pages.
    """
    block = bytes(range(256)) * 4096
    path = folder / "bare-write"
    began = time.thread_time()
    with path.open("wb", buffering=0) as file:
        for _ in range(200):
            file.write(block)
    used = time.thread_time() - began
    path.unlink()
    return used / (200 * len(block) / 1e9)
