"""What the broker's processes hold, and what lies in its folders, at a moment. Linux only (/proc)."""

from __future__ import annotations

import os
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tests.bench.machine import children, resident_mib
from tests.processes import BrokerProcess
from tests.soak.judging import Sample

MIB = 1 << 20


def sample(broker: BrokerProcess, at_s: float, life: int, *, tables: bool) -> Sample:
    """`tables`: look into the tables, too, which takes a moment."""
    values: dict[str, float] = {}
    process, *others = children(broker.pid)
    values["broker memory MiB"] = resident_mib([process])
    values["broker descriptors"] = _entries(Path(f"/proc/{process}/fd"))
    values["broker threads"] = _entries(Path(f"/proc/{process}/task"))
    if others:
        values["worker memory MiB"] = resident_mib(others)
        values["worker descriptors"] = sum(_entries(Path(f"/proc/{each}/fd")) for each in others)
    logs = list(broker.data.rglob("*.log"))
    values["segments"] = len(logs)
    values["log MiB"] = sum(map(_size, logs)) / MIB
    if tables:
        values |= _tables(broker.lake)
    return Sample(at_s=at_s, life=life, values=values)


def _tables(lake: Path) -> dict[str, float]:
    folders = [log.parent for log in lake.rglob("_delta_log") if any(log.glob("*.json"))]
    files, behind = 0, 0
    for folder in folders:
        names = sorted(path.name for path in (folder / "_delta_log").glob("*.json"))
        checkpoints = sorted(path.name for path in (folder / "_delta_log").glob("*.checkpoint*"))
        newest = checkpoints[-1][:20] if checkpoints else ""
        behind = max(behind, sum(name[:20] > newest for name in names))
        try:
            files += len(DeltaTable(folder).file_uris())
        except (DeltaError, OSError):
            continue  # it is being deleted
    return {
        "live table files": files,
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
