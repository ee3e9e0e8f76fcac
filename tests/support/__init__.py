"""What tests share: scripted models, and the textbook searches that are their oracles."""
