"""What the searches over graphs and frames share: words of vertices, paths, lattices, prefixes, n-grams."""
