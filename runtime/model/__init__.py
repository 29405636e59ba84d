"""Model sources, the catalogue, checkpoints and logical chunks."""
