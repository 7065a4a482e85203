"""What every tuned row must be compared with: the model as it is, and the cheapest ways to use the training set."""
