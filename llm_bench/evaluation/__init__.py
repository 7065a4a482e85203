"""What a model says of a set of examples."""
