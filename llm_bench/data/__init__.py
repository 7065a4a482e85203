"""Rows on disk to batches of tokens."""
