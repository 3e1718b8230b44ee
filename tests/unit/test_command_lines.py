"""Each command of ours says how it is used, and takes a wrong word for a mistake of its user."""

from __future__ import annotations

import importlib
import inspect
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

import kafka_ds
from spark_conf.system_views import system_views

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
COMMANDS = [
    "broker",
    "spark_conf.console",
    "spark_conf.jars",
    "spark_conf.s3a",
    "spark_conf.system_views",
    "tests.clients.suites",
    "tests.demo",
    "tests.fuzz",
    "tests.sim",
    "tests.soak",
]


def run(command: str, *words: str) -> object:
    """The exit status of `python -m command`, in this process."""
    module = importlib.import_module(command)
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{command}.__main__")
    takes_words = "words" in inspect.signature(module.main).parameters
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", [command, *words])
        module.main(list(words)) if takes_words else module.main()
    return ended.value.code


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--help") == 0
    assert capsys.readouterr().out.startswith(f"usage: python -m {command} ")


def test_a_broker_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("broker", "--version") == 0
    assert capsys.readouterr().out == f"kafka-ds {kafka_ds.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_word_is_named(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--no-such-option") == 2
    told = capsys.readouterr()
    assert told.err.splitlines()[-1].startswith(f"python -m {command}: error: ")
    assert told.out == ""


def test_no_seed_is_a_mistake_and_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tests.sim", "tier", "5", "3") == 2
    assert "the last seed, 3, comes before the first, 5" in capsys.readouterr().err


@pytest.mark.parametrize("lake", ["no/such/folder", "ftp://host/lake"])
def test_a_lake_that_is_none_is_one_line(lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["spark_conf.system_views", lake])
        assert importlib.import_module("spark_conf.system_views").main() == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("spark_conf.system_views: ")
    assert lake in told.err
    assert len(told.err.splitlines()) == 1


def test_a_session_without_a_view_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert system_views(cast("SparkSession", None), "no/such/folder") == []
    assert caplog.messages == [
        "no views were created: no/such/folder contains no tables of a cluster: is it lake.uri?"
    ]


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_says_what_it_wants(example: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", [str(example)])
        runpy.run_path(str(example), run_name="__main__")
    assert str(ended.value.code).startswith(f"usage: python docs/examples/{example.name} HOST")
