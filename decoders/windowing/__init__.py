"""Windows of sound that a model reads one after the other."""
