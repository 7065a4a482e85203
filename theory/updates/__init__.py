"""The two updates: Algorithm 1 in exact arithmetic, the clipped Newton step of the theorem in float64."""
