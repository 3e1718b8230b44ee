"""Pure: record batches as rows of a topic's table (`convert.py`), rows as batches again, and what is no row."""
