"""Pure: Delta's log, of any table: the next version won (`log.py`, `attempt.py`), a version loaded, upkeep."""
