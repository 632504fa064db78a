"""Exact repeats: courses of engines recorded and followed, runs made again from their folders, and judged."""
