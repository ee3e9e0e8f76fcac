"""What scorers speak, in arrays on the host, and what helps to speak it."""
