"""Pure: numpy arrays in the form that the compiled loops take: read-only, aligned, contiguous.

To numba any other array has another type, for which it would compile the loop again, which takes seconds.
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
    """A read-only view of the array, or of a copy if it is not aligned or contiguous."""
    fit = np.ascontiguousarray(array)
    if not fit.flags.aligned:
        fit = fit.copy()
    view = fit.view()
    view.flags.writeable = False
    return view
