"""det-core."""
