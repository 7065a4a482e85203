"""Steps made of pairs of forwards: when what is copied, both forwards side by side, the update that follows."""
