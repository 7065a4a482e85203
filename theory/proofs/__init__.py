"""The statements proved in place of the theorem: a page of Markdown each, and beside it the checks of its steps."""
