"""Data: the numbers that the paper prints, and what our own experiments found of the same claims."""
