"""What several tests use: crash_environment, crashed."""

from pathlib import Path


def crash_environment(folder: Path, points: tuple[str, ...], who: str = "self") -> dict[str, str]:
    once = folder / "crashed"
    once.mkdir(exist_ok=True)
    return {
        "KAFKA_DS_CRASH_AT": ",".join(points),
        "KAFKA_DS_CRASH_ONCE": str(once),
        "KAFKA_DS_CRASH_WHO": who,
    }


def crashed(folder: Path) -> set[str]:
    return {each.name for each in (folder / "crashed").iterdir()}
