"""``python -m tests.checker FILE…``: judge histories; the exit status says whether nothing was found."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.checker import history
from tests.checker.analysis import judge

# How many findings of a kind are printed.
SHOWN = 5


def main(paths: list[str]) -> int:
    """The exit status."""
    found = 0
    for path in paths:
        judgement = judge(history.read(Path(path)))
        found += len(judgement.findings)
        print(f"{path}: {dict(judgement.kinds) or 'no finding'}")
        for name, value in judgement.figures.items():
            print(f"    {name}: {value:g}")
        for kind in judgement.kinds:
            for each in [each for each in judgement.findings if each.kind == kind][:SHOWN]:
                print(f"    {each}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
