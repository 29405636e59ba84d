"""The tables: symptoms with the evidence that shows them, and clues with what they make of each cause."""
