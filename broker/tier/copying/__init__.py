"""Pure: copying segments: which ranges are due (`policy.py`), and a copy, step by step (`copier.py`)."""
