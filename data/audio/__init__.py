"""Sound: files, features, their normalisation and augmentation, batches of alike lengths. No torch."""
