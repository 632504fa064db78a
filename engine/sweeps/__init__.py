"""Sweeps: many command lines, each a process and a folder. Knows how jobs are run, not what they compute."""
