"""Shell: lets a week and a day pass for the files of a lake on a folder, while its broker is away.

A table's history, and files that no version names any more, are kept for at least a week (`lake.log.retention.ms`, and
the age of orphans), so in an hour none of them would go. Both are decided by the times of files, which are set back
here: what one life of the broker wrote is then old enough to go in the next one. No process may be reading meanwhile.
"""

from __future__ import annotations

import os
from pathlib import Path

AGE_S = 8 * 24 * 3600
# Files of tables: commits, checkpoints and data; and residue.
SUFFIXES = (".json", ".parquet", ".residue")


def age(lake: Path, by_s: float = AGE_S) -> int:
    """Make the files of all tables this much older, and return their number. Other files stay as they are."""
    aged = 0
    for folder, _, names in os.walk(lake):
        for name in names:
            if not name.endswith(SUFFIXES) or not _is_in_a_table(lake, Path(folder)):
                continue
            path = Path(folder, name)
            times = path.stat()
            os.utime(path, (times.st_atime - by_s, times.st_mtime - by_s))
            aged += 1
    return aged


def _is_in_a_table(lake: Path, folder: Path) -> bool:
    inside = [folder, *folder.parents]
    return any((each / "_delta_log").is_dir() for each in inside[: inside.index(lake)])
