"""Pure: the tables: what commits on topics' tables may do (`intent.py`), tiered ranges, noted offsets."""
