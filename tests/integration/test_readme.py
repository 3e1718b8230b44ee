"""The quick start of the README is run as it stands there, and prints what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.command_line import CommandLine
from tests.processes import BrokerProcess, wait_until

README = Path(__file__).resolve().parents[2] / "README.md"
MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}")


def steps() -> list[tuple[str, str]]:
    """Each command of the quick start, and what it is said to print."""
    text = README.read_text().partition("## Quick start")[2].partition("\n## ")[0]
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    found = re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", "".join(blocks), re.MULTILINE)
    assert len(found) >= 6
    return found


def test_the_quick_start_does_what_it_says(tmp_path: Path) -> None:
    """But for the port, which is a free one here, and what is waited for."""
    data = tmp_path / "data"
    settings = {"log.dirs": data / "log", "lake.uri": data / "lake", "lake.max.lag.ms": 500}
    broker = BrokerProcess(tmp_path / "broker", settings).start()
    kafka_ds = CommandLine(broker.bootstrap, tmp_path)
    environment = {**os.environ, "KAFKA_DS_BOOTSTRAP_SERVER": broker.bootstrap}
    environment |= {"PYTHON": sys.executable, "HOME": str(tmp_path)}
    try:
        for command, output in steps():
            if " sql " in command:
                wait_until("the lake", lambda: kafka_ds.json("tier", "status")[0]["lake_rows"] == 3)
            done = subprocess.run(
                ["bash", "-c", f'kafka-ds() {{ "$PYTHON" -m broker.cli "$@"; }}\n{command}'],
                capture_output=True,
                text=True,
                env=environment,
                cwd=tmp_path,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            said = MOMENT.sub("(time)", done.stdout + done.stderr)
            assert said == MOMENT.sub("(time)", output), command
    finally:
        broker.stop()
