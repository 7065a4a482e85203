"""Pages and figures: how they look, and the files in which they are written."""
