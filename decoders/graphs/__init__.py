"""Shared parts of searches over graphs and frames: vertex words, paths, lattices, prefixes, n-grams."""
