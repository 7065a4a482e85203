"""Language models: loading, attention, what is trained, and what a step holds."""
