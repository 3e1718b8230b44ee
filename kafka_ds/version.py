"""Pure: which version this is. pyproject.toml has it from here."""

from typing import Final

__all__ = ["VERSION"]

VERSION: Final = "0.1.0"
