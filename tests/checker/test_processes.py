"""What clients of three broker processes see while these are killed, frozen and cut from one another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.cluster_network import are_permitted, inside_namespaces


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_clients_of_processes_see_nothing_wrong(tmp_path: Path) -> None:
    if not are_permitted():
        pytest.skip("needs iproute2 and util-linux, and to be let make network namespaces")
    words = [sys.executable, "-m", "tests.checker.processes", str(tmp_path), "60", "1"]
    with (tmp_path / "told").open("w+") as told:
        process = subprocess.Popen(
            inside_namespaces(words), stdout=told, stderr=told, start_new_session=True
        )
        try:
            status = process.wait(800)
        finally:
            with suppress(ProcessLookupError):  # Also what is left of one that has ended.
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert status == 0, (tmp_path / "told").read_text()[-4_000:]
