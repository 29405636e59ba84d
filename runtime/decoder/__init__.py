"""Decoders assembled from a model config."""
