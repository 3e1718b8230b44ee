"""Clients' own test suites, run against a broker of ours: `make suites`."""
