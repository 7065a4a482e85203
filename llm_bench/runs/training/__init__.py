"""One run of a method that trains: its loop, what a step is, and what lets it go on after an interruption."""
