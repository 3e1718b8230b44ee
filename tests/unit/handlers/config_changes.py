"""What several tests use: ."""
