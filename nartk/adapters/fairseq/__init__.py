"""Checkpoints of fairseq: reads, converts and averages them, without fairseq itself."""
