"""What the broker's processes hold, and what lies in its folders, at a moment. Linux only (/proc)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tests.bench.machine import children, resident_mib
from tests.processes import BrokerProcess
from tests.soak.judging import Sample

MIB = 1 << 20
# What a child process of the broker's runs, and what it is called here.
ROLES = {"broker.tier.worker": "worker", "broker.cleaning.worker": "cleaner"}


def sample(broker: BrokerProcess, at_s: float, life: int, *, tables: bool) -> Sample:
    """`tables`: look into the tables, too, which takes a moment."""
    values: dict[str, float] = {}
    process, *others = children(broker.pid)
    values["broker memory MiB"] = resident_mib([process])
    values["broker descriptors"] = _entries(Path(f"/proc/{process}/fd"))
    values["broker threads"] = _entries(Path(f"/proc/{process}/task"))
    for each in others:
        role = role_of(_words(each))
        if role is not None:
            values[f"{role} memory MiB"] = resident_mib([each])
            values[f"{role} descriptors"] = _entries(Path(f"/proc/{each}/fd"))
    logs = [
        Path(folder, name)
        for folder, _, names in os.walk(broker.data)
        for name in names
        if name.endswith(".log")
    ]
    values["segments"] = len(logs)
    values["log MiB"] = sum(map(_size, logs)) / MIB
    if tables:
        values |= _tables(broker.lake)
    return Sample(at_s=at_s, life=life, values=values)


def role_of(words: Sequence[str]) -> str | None:
    """What a child process is by its command line, `python -m <module> …`; None for one that is just being made."""
    at = words.index("-m") + 1 if "-m" in words else len(words)
    return ROLES.get(words[at]) if at < len(words) else None


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def _tables(lake: Path) -> dict[str, float]:
    # Folders that are deleted meanwhile are passed over by `os.walk`.
    folders = [Path(folder) for folder, inside, _ in os.walk(lake) if "_delta_log" in inside]
    topics, system, behind = 0, 0, 0
    for folder in folders:
        try:
            names = os.listdir(folder / "_delta_log")
            newest = max((name[:20] for name in names if ".checkpoint" in name), default="")
            behind = max(
                behind, sum(name[:20] > newest for name in names if name.endswith(".json"))
            )
            files = len(DeltaTable(folder).file_uris())
        except (DeltaError, OSError):
            continue  # it is being deleted
        if folder.parent.name == "topics":
            topics += files
        else:
            system += files
    return {
        "live files of topics": topics,
        "live files of system tables": system,
        "commits since a checkpoint": behind,
        "table folders": len(folders),
    }


def _entries(folder: Path) -> int:
    try:
        return len(os.listdir(folder))
    except OSError:
        return 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
