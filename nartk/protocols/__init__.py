"""Protocols between decoders and scorers, in arrays on the host, and the code that both share."""
