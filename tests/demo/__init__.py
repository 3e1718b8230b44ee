"""The demo: one record's whole way, on real data."""
