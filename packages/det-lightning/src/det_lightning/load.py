"""A trial out of a checkpoint, to be used rather than trained."""
