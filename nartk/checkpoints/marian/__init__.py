"""Models as Marian itself, Bergamot and Firefox store them."""
