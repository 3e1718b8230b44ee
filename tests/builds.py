"""Builds of compiled modules that are whole by their checksums, and whose libraries cannot be loaded."""

from __future__ import annotations

import json
from pathlib import Path

from broker.compiled.build_files import (
    KIND,
    MANIFEST,
    ROOT,
    SHARED,
    Manifest,
    build_name,
    library,
    python_build,
    source_sums,
    sum_of,
)

MODULE = "broker.log.log"


def make_build(place: Path, root: Path) -> Path:
    """A build whose libraries are none, but have the right checksums."""
    for name in (SHARED, MODULE):
        library(place, name).parent.mkdir(parents=True, exist_ok=True)
        library(place, name).write_bytes(b"\x7fELF, but no library")
    sums = {name: sum_of(library(place, name)) for name in (SHARED, MODULE)}
    manifest = Manifest(python_build(), source_sums(root), sums)
    (place / MANIFEST).write_text(json.dumps(manifest._asdict()))
    place.chmod(0o700)
    return place


def cached_build(cache: Path) -> Path:
    """One of this checkout in a user's cache."""
    place = cache / "kafka-ds" / KIND / build_name(ROOT)
    place.mkdir(parents=True, mode=0o700)
    for folder in (cache / "kafka-ds", cache / "kafka-ds" / KIND):
        folder.chmod(0o700)
    return make_build(place, ROOT)
