"""ESPnet's models of speech recognition: configurations, weights and words."""
