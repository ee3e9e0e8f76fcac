"""Model folders: reading, checking and writing them, and the options that they ask for."""
