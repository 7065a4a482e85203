"""Estimates of curvature: A-GNB and GNB by enumeration and by torch.func, and from an SPSA gradient."""
