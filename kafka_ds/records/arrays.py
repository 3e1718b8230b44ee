"""Pure: numpy arrays in the one form that the compiled loops take: read-only, aligned, contiguous.

An array that differs in any of these is another type to numba, and would cost another compilation of seconds; so every
input of a loop is made here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["fixed", "read_only"]


def read_only(buffer: Any, dtype: type[np.generic]) -> NDArray[Any]:
    """A view of a buffer's bytes (None: no bytes) as numbers of that type."""
    view = memoryview(b"" if buffer is None else buffer)
    if view.nbytes == 0:
        return fixed(np.empty(0, dtype))
    return fixed(np.frombuffer(view, dtype))


def fixed(array: NDArray[Any]) -> NDArray[Any]:
    """The array as the loops take it: itself, or a copy where it lies askew."""
    fit = np.ascontiguousarray(array)
    if not fit.flags.aligned:
        fit = fit.copy()
    view = fit.view()
    view.flags.writeable = False
    return view
