"""Reports of sweeps and runs: a page, a summary in Markdown, a table as CSV.

Reads what runs leave in their folders; runs nothing itself and imports neither torch nor a plotting library.
"""

from engine.report.writing import write

__all__ = ["write"]
