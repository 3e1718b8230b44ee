"""A closed segment's bytes and their way into one Parquet file, without broker or process boundaries."""

from __future__ import annotations

import random
from pathlib import Path

from kafka_ds.wire import batch
