"""What the broker's processes hold, and which files are in its folders, at a moment. Linux only (/proc)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tests.bench.machine import children, resident_mib
from tests.processes import BrokerProcess
from tests.soak.judging import Sample

MIB = 1 << 20
LOG_FOLDER = "_delta_log"
# In each partition's folder.
METADATA_FILE = "partition.metadata"
# The topic whose records go by retention.
EXPIRING = "soak-plain"
# The modules that the broker's child processes run, and their names here.
ROLES = {"broker.worker.main": "worker", "broker.cleaner.main": "cleaner"}


def sample(broker: BrokerProcess, at_s: float, life: int, *, tables: bool) -> Sample:
    """Take a sample; with `tables` also of the tables, which takes a moment."""
    values: dict[str, float] = {}
    process, *others = children(broker.pid)
    values["processes"] = 1 + len(others)
    values["broker memory MiB"] = resident_mib([process])
    values["broker descriptors"] = _entries(Path(f"/proc/{process}/fd"))
    values["broker threads"] = _entries(Path(f"/proc/{process}/task"))
    for each in others:
        role = role_of(_words(each))
        if role is not None:
            values[f"{role} memory MiB"] = resident_mib([each])
            values[f"{role} descriptors"] = _entries(Path(f"/proc/{each}/fd"))
    values |= logs_of(broker.data)
    if tables:
        values |= tables_of(broker.lake)
    return Sample(at_s=at_s, life=life, values=values)


def role_of(words: Sequence[str]) -> str | None:
    """The role of a child process by its command line, `python -m <module> …`; None for one that was just forked."""
    at = words.index("-m") + 1 if "-m" in words else len(words)
    return ROLES.get(words[at]) if at < len(words) else None


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def logs_of(data: Path) -> dict[str, float]:
    """Counts and sizes of files in the folders of partitions, including folders that are being deleted."""
    found = {"segments": 0.0, "segments of internal topics": 0.0, "files of logs": 0.0}
    found |= {"log MiB": 0.0, "internal topics MiB": 0.0}
    for folder in data.iterdir() if data.is_dir() else ():
        if not (folder / METADATA_FILE).exists() and not folder.name.endswith("-delete"):
            continue  # of no partition
        is_internal = folder.name.startswith("__")
        for file in _files(folder):
            found["files of logs"] += 1
            if file.suffix != ".log":
                continue
            size_mib = _size(file) / MIB
            found["segments"] += 1
            found["log MiB"] += size_mib
            found["segments of internal topics"] += is_internal
            found["internal topics MiB"] += size_mib * is_internal
    return found


def tables_of(lake: Path) -> dict[str, float]:
    """Counts of the tables' files: in their newest versions, and in their folders."""
    names = ("live files of topics", "live files of system tables", "commits since a checkpoint")
    names += ("files of Delta logs", "files of tables", "residue files of what expires")
    found = dict.fromkeys((*names, "table folders"), 0.0)
    # `os.walk` skips folders that are deleted meanwhile.
    for folder in [Path(folder) for folder, inside, _ in os.walk(lake) if LOG_FOLDER in inside]:
        files = _files(folder)
        of_log = [each.name for each in files if each.parent.name == LOG_FOLDER]
        found["table folders"] += 1
        found["files of Delta logs"] += len(of_log)
        found["files of tables"] += sum(
            each.suffix == ".parquet" and each.parent.name != LOG_FOLDER for each in files
        )
        if folder.name == EXPIRING:
            found["residue files of what expires"] = sum(
                each.suffix == ".residue" for each in files
            )
        newest = max((name[:20] for name in of_log if ".checkpoint" in name), default="")
        behind = sum(name[:20] > newest for name in of_log if name.endswith(".json"))
        found["commits since a checkpoint"] = max(found["commits since a checkpoint"], behind)
        kind = "topics" if folder.parent.name == "topics" else "system tables"
        # An error means that it is being deleted.
        with suppress(DeltaError, OSError):
            found[f"live files of {kind}"] += len(DeltaTable(folder).file_uris())
    return found


def _files(folder: Path) -> list[Path]:
    return [Path(inside, name) for inside, _, names in os.walk(folder) for name in names]


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
