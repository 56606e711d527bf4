"""Facts about values: read off the model file, or observed by running it."""
