"""Sweeps: many command lines, each its own process and folder. Knows how jobs are run, not what they compute."""
