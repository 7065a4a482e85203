"""What a claim is, how it is judged, and how the records become a table, a file and a page."""
