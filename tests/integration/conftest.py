"""A fixture for integration tests: a lake in a folder, and one in a bucket."""

from pathlib import Path

import pytest

from tests.integration.lake_bench import LakeBench


@pytest.fixture(params=["delta", "s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> LakeBench:
    if request.param == "s3":
        request.getfixturevalue("s3_environment")
    return LakeBench(request.param, tmp_path)
