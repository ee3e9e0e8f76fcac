"""Vocoders: each makes sound of log-mel spectrograms. A vocoder is a file, named as its flag."""
