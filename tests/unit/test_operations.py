"""What docs/operations and docs/how-to name is there: metrics, settings, the broker's own command."""

from __future__ import annotations

import configparser
import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import broker.metrics_doc  # noqa: F401 - imports everything that declares
from broker.config.loader import known_names, topic_settings
from broker.config.unserved import unserved_settings
from broker.metrics.names import declared

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "operations"
PAGES = (FOLDER / "README.md", *sorted((FOLDER.parent / "how-to").glob("*.md")))
# prometheus-client's own.
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"}
PREFIXES = "lake|remote|local|log|controller|broker|metrics|default|min|group|offsets|replica"


def names_in(text: str) -> set[str]:
    """But not of files, which are hidden ones."""
    return set(re.findall(r"(?<![.\w])(?:kafka|process)_[a-z0-9_]+", text))


@pytest.mark.parametrize("page", [FOLDER / "grafana.json", *PAGES], ids=lambda page: page.name)
def test_metrics_that_are_named_are_served(page: Path) -> None:
    # The first two are ours, then schemas of a catalog, and what a client pushes.
    others = {
        "kafka_ds", "kafka_controller_kafkacontroller_", "kafka_topics", "kafka_tables",
        "kafka_client_producer_record_send_total",
    }  # fmt: skip
    named = names_in(page.read_text()) - others
    assert named <= {metric.name for metric in declared()} | PROCESS


def test_the_board_asks_one_thing_a_panel() -> None:
    board = json.loads((FOLDER / "grafana.json").read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in panels:
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert names_in(target["expr"]), panel["title"]
            assert target["expr"].count("(") == target["expr"].count(")"), panel["title"]
    places = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in board["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places)), "panels lie upon one another"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_that_are_named_are_known(page: Path) -> None:
    known = {*known_names(), *topic_settings(), *unserved_settings()}
    named = set(re.findall(rf"`((?:{PREFIXES})(?:\.[a-z]+)+)(?:=[^`]*)?`", page.read_text()))
    assert named <= known


def test_the_unit_runs_the_brokers_command(tmp_path: Path) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(FOLDER / "kafka-ds.service")
    command = Path(unit["Service"]["ExecStart"].split()[0])
    assert (Path(sys.executable).parent / command.name).exists()
    verify = shutil.which("systemd-analyze")
    if verify is None:
        return
    here = tmp_path / "kafka-ds.service"
    text = (FOLDER / "kafka-ds.service").read_text()
    here.write_text(text.replace(str(command), str(Path(sys.executable).parent / command.name)))
    found = subprocess.run([verify, "verify", here], capture_output=True, text=True, check=False)
    assert found.stderr == ""


@pytest.mark.parametrize("file", ["Makefile", "Dockerfile"])
def test_what_set_up_compiles_is_there(file: str) -> None:
    """Their one-line programs name functions of ours."""
    text = (Path(__file__).resolve().parents[2] / file).read_text()
    found = re.findall(r"from ((?:broker|kafka_ds)[\w.]*) import (\w+)(?: as (\w+))?", text)
    assert len(found) >= 3
    for module, name, _ in found:
        package = importlib.import_module(module)
        made = getattr(package, name, None) or importlib.import_module(f"{module}.{name}")
        assert hasattr(made, "loops") or hasattr(made, "warm_up") or callable(made), (module, name)
