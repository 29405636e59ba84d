"""From a model and a roster to tokens."""
