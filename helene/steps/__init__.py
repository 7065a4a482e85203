"""The order of a step, whatever the method: plan, measure, apply; its state, its files and its replay."""
