"""Pure: tiered storage (KIP-405): records of closed segments become rows of Delta tables, and are read from there.

Rules of this package: two processes meet here. `manager.py` is the broker's side and loads nothing heavy; it asks the
worker (`service.py`) for all that needs Arrow. A folder holds both sides of its subject. Who copies or expires asks for
the lake by the two protocols of `spi.py`; `delta` and `metadata` implement them.
"""
