"""Pure: retention in the lake (`expiration.py` decides), and of the local segments that are there as well."""
