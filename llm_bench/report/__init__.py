"""Pages and figures from records."""
