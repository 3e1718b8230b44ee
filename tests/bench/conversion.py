"""A closed segment's bytes and their way into one Parquet file, without broker or process boundaries."""

from __future__ import annotations
