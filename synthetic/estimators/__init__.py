"""What A-GNB estimates: bias, spread and limit law against the batch size, beside its rivals and the truth."""
