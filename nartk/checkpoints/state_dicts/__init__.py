"""State dicts of networks that no library of models has, by a map of names and a configuration."""
