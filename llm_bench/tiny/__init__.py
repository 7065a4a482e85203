"""Models small enough to be pretrained on the spot, and the language they are pretrained on: no download needed."""
