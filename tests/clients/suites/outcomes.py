"""What became of a test of a suite; and how its process is run to an end."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a test at this try: "passed", "failed" or "skipped" (by itself), and what it printed."""

    test: str
    state: str
    printed: str
    tries: int = 1


def ended(
    words: Sequence[str], folder: Path, environment: dict[str, str], limit_s: float = LIMIT_S
) -> str:
    """What a process printed until it ended, or was ended."""
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return f"{(late.stdout or b'').decode(errors='replace')}\nended after {limit_s} s"
    return done.stdout.decode(errors="replace")
