"""How many examples the models run: few in `make test`, as many as asked for in `make sim`."""

import os


def examples(default: int) -> int:
    """``KAFKA_DS_SIM_SEEDS``, else ``default``."""
    return int(os.environ.get("KAFKA_DS_SIM_SEEDS", default))
