"""Shell: `python -m broker [restore | adopt] [server.properties] [--override key=value]…`, with compiled modules if
there are any.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from broker.compiled.finder import use_build


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say, `sys.argv`'s by default; returns the exit status."""
    use_build()  # Before what it compiles is imported.
    from broker import commands

    return commands.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
