"""Tasks of masked language models, as LM-BFF and MeZO prompt RoBERTa."""
