"""What became of a test of a suite; how its process is run to an end, and once more where it fails."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

LIMIT_S = 600
AT_ONCE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a test at its last try: "passed", "failed" or "skipped" (by itself), and what it printed."""

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


def go_test(binary: Path, folder: Path, environment: dict[str, str], test: str) -> Outcome:
    """One test of a compiled package of Go's, whose files are in the folder."""
    words = [str(binary), "-test.run", f"^{test}$", "-test.v"]
    printed = ended(words, folder, environment)
    states = {"FAIL": "failed", "SKIP": "skipped", "PASS": "passed"}
    state = next((states[word] for word in states if f"--- {word}: {test} " in printed), "failed")
    return Outcome(test=test, state=state, printed=printed)


def each_of(
    run: Callable[[str], Outcome], tests: Sequence[str], *, at_once: int = AT_ONCE
) -> Iterator[Outcome]:
    """Each test, and once more where it fails: many of them wait for so many seconds and no longer."""

    def run_again_if_failed(test: str) -> Outcome:
        first = run(test)
        if first.state != "failed":
            return first
        second = run(test)
        return replace(second, tries=2, printed=f"{first.printed}\n--- again\n{second.printed}")

    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(run_again_if_failed, tests)
