"""Shell: a task whose consumer has enough ends quietly.

Rules of this file: `show`, `take`, `isEmpty` and LIMIT stop in the midst of rows: Spark closes its connection, and what
is still in the Python worker's buffer has nowhere to go. PySpark's daemon (4.1, 4.2) then prints a traceback on the
terminal, though nothing is wrong, and no code of ours runs any more. So this one traceback is left out, told by where
it was raised; the worker ends as before.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any, Final

_print: Final = traceback.print_exc
# Which function flushes what is left, in which file.
_FUNCTION: Final = "worker"
_FILE: Final = ("pyspark", "daemon.py")


def end_quietly() -> None:
    """Have this process say nothing when Spark hangs up before it has all rows."""
    traceback.print_exc = _print_unless_left


def _print_unless_left(*arguments: Any, **named: Any) -> None:
    if not _was_left(sys.exc_info()[1]):
        _print(*arguments, **named)


def _was_left(problem: BaseException | None) -> bool:
    if not isinstance(problem, BrokenPipeError | ConnectionResetError):
        return False
    code = [frame.f_code for frame, _ in traceback.walk_tb(problem.__traceback__)][-1]
    return code.co_name == _FUNCTION and Path(code.co_filename).parts[-2:] == _FILE
