"""Brokers that are killed, frozen, out of room and cut from one another under load lose nothing that was acknowledged.

The brokers run in namespaces of their own, as processes of a process that plays the rounds (`cluster_rounds`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster_network import are_permitted, inside_namespaces


def play(folder: Path, rounds: int, seed: int, timeout_s: float) -> dict[str, Any]:
    """What the rounds came to; fails where they did."""
    if not are_permitted():
        pytest.skip("needs iproute2 and util-linux, and to be let make network namespaces")
    words = [sys.executable, "-m", "tests.integration.cluster_rounds", folder, rounds, seed]
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        # A session of its own: whatever happens, all of it can be ended.
        process = subprocess.Popen(
            inside_namespaces([str(word) for word in words]),
            stdout=out,
            stderr=err,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            told = (folder / "err").read_text()
            raise AssertionError(f"not done after {timeout_s} s:\n{told[-4_000:]}") from None
        finally:
            with suppress(ProcessLookupError):  # Also what is left of one that has ended.
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    told = (folder / "err").read_text()
    assert status == 0, told[-4_000:]
    print(told)
    found: dict[str, Any] = json.loads((folder / "out").read_text().splitlines()[-1])
    return found


@pytest.mark.timeout(900)
def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    found = play(tmp_path, 4, seed=1, timeout_s=880)
    assert found["tried"] == {"kill": 1, "freeze": 1, "cut off": 1, "disk": 1}
    assert found["acknowledged"] > 1_000


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_nothing_acknowledged_is_lost_in_fifty_rounds(tmp_path: Path) -> None:
    found = play(tmp_path, 50, seed=2, timeout_s=1_780)
    assert sum(found["tried"].values()) == 50
    assert len(found["tried"]) == 8
