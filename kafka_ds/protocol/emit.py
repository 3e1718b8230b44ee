"""Pure: builds Python source for the code generators.

- Consecutive items of fixed size become one `struct` call, which costs little more than a single item. Both generators
  collect such items and flush them before other code.
- Names in the scope of generated code are descriptive (`unpack_iqB`), so that the code is readable.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Page:
    """Lines of source, their scope, and the names used so far."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self.lines: list[str] = []
        self.scope = scope
        self._depth = 0
        self._names = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Indent the lines written in the context."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Insert the lines written in the context at the top of the page, without indentation."""
        lines, depth = self.lines, self._depth
        self.lines, self._depth = [], 0
        yield
        self.lines, self._depth = self.lines + lines, depth

    def name(self, stem: str) -> str:
        """An unused name."""
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
        """Compile and run the page; returns its scope, which has the functions."""
        source = "\n".join(self.lines) + "\n"
        exec(compile(source, f"<{title}>", "exec"), self.scope)  # noqa: S102  (our own text)
        return self.scope


class PerCount(dict[int, Any]):
    """`pack` or `unpack_from` of arrays of one code, by count; cached for small counts."""

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
