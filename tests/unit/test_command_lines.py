"""Each command of ours says how it is used, and takes a wrong word for a mistake of its user."""

from __future__ import annotations

import importlib
import inspect
import sys

import pytest

COMMANDS = [
    "broker",
    "spark_conf.console",
    "spark_conf.jars",
    "spark_conf.s3a",
    "spark_conf.system_views",
    "tests.bench",
    "tests.clients.suites",
    "tests.demo",
    "tests.sim",
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


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_word_is_named(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--no-such-option") == 2
    told = capsys.readouterr()
    assert told.err.splitlines()[-1].startswith(f"python -m {command}: error: ")
    assert told.out == ""
