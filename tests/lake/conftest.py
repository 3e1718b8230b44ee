"""Stores of both kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_ds.delta.store.local import LocalStore
from kafka_ds.delta.store.store import Store
from kafka_ds.delta.store.uri import open_store
from tests.s3_server import address_for


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Tests of the lake run on both kinds of store."""
    if request.param == "folder":
        return LocalStore(str(tmp_path))
    request.getfixturevalue("s3_environment")
    return open_store(address_for(tmp_path))
