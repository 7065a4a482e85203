"""Seconds and bytes of a step, and its rivals."""
