"""Scaling laws: measured cells, fits with intervals, their figure."""
