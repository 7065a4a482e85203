"""What users give: numbers, parameters and their layers, files, extras; each is checked, in one line."""
