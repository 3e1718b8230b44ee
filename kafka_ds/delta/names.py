"""Pure: how a table's log is laid out in its folder, and how actions spell the paths of files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

LOG_FOLDER = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")


def commit_file(version: int) -> str:
    """A version's file, relative to its table."""
    return f"{LOG_FOLDER}/{version:020d}.json"


def last_checkpoint_file() -> str:
    """Where the newest checkpoint is named, relative to the table."""
    return f"{LOG_FOLDER}/_last_checkpoint"


def version_of_commit(name: str) -> int | None:
    """The version of a commit file's name, None for other names."""
    match = _COMMIT.fullmatch(name)
    return int(match[1]) if match else None


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class CheckpointName:
    """A checkpoint's file: one of `parts`, counted from 1."""

    version: int
    part: int = 1
    parts: int = 1


def checkpoint_of(name: str) -> CheckpointName | None:
    """What a classic checkpoint's file name says, None for other names."""
    match = _CHECKPOINT.fullmatch(name)
    if match is None:
        return None
    part, parts = int(match[2] or 1), int(match[3] or 1)
    return CheckpointName(version=int(match[1]), part=part, parts=parts)


def encode_path(path: str) -> str:
    """A path as an add or remove action spells it (RFC 2396)."""
    return quote(path, safe="/=:@!$&'()*+,;~-._")


def resolve_path(table: str, action_path: str) -> str:
    """Where the file of an add or remove action lies: relative to the lake, or absolute."""
    if ":" not in action_path and "%" not in action_path and not action_path.startswith("/"):
        return f"{table}/{action_path}"  # As kafka-ds spells them: a table has thousands of them.
    path = unquote(action_path)
    parts = urlsplit(action_path)
    if parts.scheme == "file":
        return unquote(parts.path)
    if parts.scheme and "://" in action_path:
        return path
    return path if path.startswith("/") else f"{table}/{path}"
