"""Tasks of causal language models, as MeZO prompts OPT."""
