"""FunASR's Paraformers: configurations, weights, statistics and words."""
