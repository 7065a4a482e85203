"""The paper's tables again: its numbers, which runs a row needs, and the page that sets both side by side."""
