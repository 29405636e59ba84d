"""The FFN fabric: activations out to the ducks, summed partial vectors back."""
