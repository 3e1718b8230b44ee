"""What several tests use: ."""

from __future__ import annotations
