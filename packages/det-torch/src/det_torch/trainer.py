"""Training a trial in one's own process: a script, a notebook."""
