"""Pure: where the lake lies: one protocol (`store.py`), a local folder and S3 behind it."""
