"""Real clients against a real broker process."""
