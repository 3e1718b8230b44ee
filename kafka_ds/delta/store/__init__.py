"""Pure: where the lake lies: one protocol (`store.py`), a local folder and object stores behind it."""
