"""All randomness of a run comes from its seed, including what the product draws by itself."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """Inside this context, ids (`uuid`, `secrets`) and the functions of `random` follow from the seed."""
    source = random.Random(seed)
    modules: Any = random
    urandom, sources_urandom, state = os.urandom, modules._urandom, random.getstate()
    os.urandom = modules._urandom = source.randbytes
    random.seed(seed)
    try:
        yield
    finally:
        os.urandom, modules._urandom = urandom, sources_urandom
        random.setstate(state)
