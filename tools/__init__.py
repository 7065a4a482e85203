"""For one bare GPU machine that is there for minutes; not part of the package."""
