"""Runs as data: plain values, records with their provenance, the store that holds them."""
