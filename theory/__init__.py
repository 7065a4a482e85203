"""Every claim of the paper, judged by checks that run; what is true in their place, proved. See ``README.md``."""
