"""What a change does to counts, speed and memory, tracked by asv. `docs/benchmarks.md` says how to read it."""
