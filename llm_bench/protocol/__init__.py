"""Which runs make a table: presets, plan and execution."""
