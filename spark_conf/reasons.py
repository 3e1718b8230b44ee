"""Pure: the line of an error of Spark's that says what is wrong.

Spark surrounds it with the traceback of its Python process, with its plan, and with stacks of the JVM.
"""

from __future__ import annotations

import re
from typing import Final

_TRACEBACK: Final = "Traceback (most recent call last):"
# What comes after what was said: Spark's code for it, the stack of the JVM.
_REST: Final = re.compile(r"\n\s*(?:SQLSTATE: |at [\w.$/]+\(|Driver stacktrace:)")
_CALL: Final = re.compile(r"An error occurred while calling [\w.$]+\n: ")
# The numbers differ each time, and FailureLog would take the same failure for another one.
_TASK: Final = re.compile(
    r"(?:org\.apache\.spark\.SparkException: )?Job aborted [^\n]*?\(TID \d+\) \([^\n)]*\): "
)
_OURS: Final = re.compile(r"\bkafka_ds\.[\w.]+: ")


def reason(problem: BaseException) -> str:
    """What is wrong, in one line."""
    said = _TASK.sub("", _CALL.sub("", _REST.split(str(problem), maxsplit=1)[0]))
    # A ParseException begins with an empty line.
    lines = list(filter(str.strip, said.splitlines())) or [type(problem).__name__]
    if _TRACEBACK in said:
        # The frames are indented; behind the last one is the exception, with its message.
        frames = [place for place, line in enumerate(lines) if line.startswith("  ")]
        lines = lines[frames[-1] + 1 :] if frames else lines
    elif lines[0].endswith(":"):
        lines = lines[1:] or lines
    return _OURS.sub("", lines[0] if lines else said)
