"""Pure: a page of Python source in the making, and the run of fixed-size items at its end.

- Items of fixed size that follow each other become one `struct` call, which costs little more than
  a single item. Both generators collect such a run in `items` and flush it before anything else.
- Names in the scope of the generated code say what they are (`unpack_iqB`), so that it can be read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Page:
    """Lines of source, the objects that they name, and the names used so far."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self.lines: list[str] = []
        self.scope = scope
        self._depth = 0
        self._names = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Indent what is written inside."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Write elsewhere for a while, at the outermost level, and put that text first."""
        lines, depth = self.lines, self._depth
        self.lines, self._depth = [], 0
        yield
        self.lines, self._depth = self.lines + lines, depth

    def name(self, stem: str) -> str:
        """A name that no other line uses."""
        self._names += 1
        return f"{stem}{self._names}"

    def constant(self, value: Any, stem: str) -> str:
        """An expression for a default value."""
        if value is None or isinstance(value, (bool, int, float, str)):
            return repr(value)
        if isinstance(value, list):
            assert not value, "a default list is empty"
            return "[]"
        name = self.name(stem)
        self.scope[name] = value
        return name

    def struct_function(self, method: str, codes: list[str]) -> str:
        """The name of `pack` or `unpack_from` for these codes."""
        name = f"{method}_{''.join(codes)}".replace("?", "t")
        if name not in self.scope:
            self.scope[name] = getattr(struct.Struct(">" + "".join(codes)), method)
        return name

    def compile(self, title: str) -> dict[str, Any]:
        """Run the page; its functions are in the scope that is returned."""
        source = "\n".join(self.lines) + "\n"
        exec(compile(source, f"<{title}>", "exec"), self.scope)  # noqa: S102  (our own text)
        return self.scope


class PerCount(dict[int, Any]):
    """`pack` or `unpack_from` of arrays of one code, by count; kept for the counts that are common."""

    KEPT_MAX = 64

    def __init__(self, method: str, code: str) -> None:
        super().__init__()
        self._method = method
        self._code = code

    def __missing__(self, count: int) -> Any:
        function = getattr(struct.Struct(f">{count}{self._code}"), self._method)
        if count <= self.KEPT_MAX:
            self[count] = function
        return function
