"""Directions of low rank, one for each group of a batch: drawn, and seen by a forward without a copy."""
