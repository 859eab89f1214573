"""det-torch."""
