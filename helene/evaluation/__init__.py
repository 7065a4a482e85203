"""The loss at theta and at theta + eps z, with theta only read; curvature from further evaluations."""
