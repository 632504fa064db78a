"""Take the pictures of docs/report.md: `python tests/report/screenshots.py REPORT.html docs/images`.

Needs a Chromium. Knows the page's sections by their ids.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from chromium import Page, chromium, find_chromium

DRAWN = "document.documentElement.dataset.drawn === 'yes'"
# name, width, height, dark, section to start at
VIEWS = (
    ("report-desktop-light", 1440, 1000, False, None),
    ("report-desktop-dark", 1440, 1000, True, "plots"),
    ("report-phone-light", 390, 1200, False, "table"),
    ("report-phone-dark", 390, 1200, True, "plots"),
)


def take(page: Page, report: Path, folder: Path) -> None:
    """All views."""
    for name, width, height, dark, section in VIEWS:
        page.look(width, height, dark=dark)
        page.open(report)
        page.wait(DRAWN)
        if section is not None:
            page.run(f"document.getElementById('{section}').scrollIntoView()")
        time.sleep(0.3)  # the last frame
        top = page.run("window.scrollY")
        page.screenshot(folder / f"{name}.png", (0, top, width, height))


def main() -> int:
    binary = find_chromium()
    if binary is None:
        print("no Chromium on this machine", file=sys.stderr)
        return 1
    with chromium(binary) as page:
        take(page, Path(sys.argv[1]), Path(sys.argv[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
