"""Data that ships with the runtime: the catalogue of models, and texts to measure formats on."""
