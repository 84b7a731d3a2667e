"""Pictures of the pages, as people see them: ``make pictures`` writes them to build/pictures, and the README's.

Needs Chromium (``apt-get install chromium``). Every page is taken light, dark and as wide as a telephone.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOGS = Path("examples") / "logs"
OUT = ROOT / "build" / "pictures"
PAGES = {
    "report": [LOGS / "cpu-first"],
    "report-gpu": [LOGS / "h200-transfer-htam"],
    "comparison": [LOGS / "h200-compute-htam", LOGS / "h200-compute-feedback"],
}
README = ("report-gpu", (1000, 720), ROOT / "docs" / "pictures" / "report-light.png")
"""Page, size in pixels and file of the picture that the README shows."""
VIEWS = {"light": (1180, False), "dark": (1180, True), "narrow": (400, False)}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def main() -> None:
    """Write all pages and take their pictures."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        sys.exit(f"none of {', '.join(BROWSERS)} is installed; try: apt-get install chromium")
    OUT.mkdir(parents=True, exist_ok=True)
    for name, runs in PAGES.items():
        html = OUT / f"{name}.html"
        report = [sys.executable, "-P", "-m", "pipeline", "report", *map(str, runs), "--out", str(html)]
        subprocess.run(report, check=True, cwd=ROOT)
        for view, (width, dark) in VIEWS.items():
            take(browser, html, OUT / f"{name}-{view}.png", width, 2400, dark=dark)
    page, (width, height), target = README
    take(browser, OUT / f"{page}.html", target, width, height)


def take(browser: str, html: Path, target: Path, width: int, height: int, dark: bool = False) -> None:
    """One picture of the top of a page.

    A window is never narrower than 500 pixels, so a narrow page stands in a frame of its width.
    """
    with tempfile.TemporaryDirectory() as folder:
        shown = html
        if width < 500:
            shown = Path(folder) / "frame.html"
            frame = f'<iframe src="{html.as_uri()}" style="border:0;width:{width}px;height:{height}px">'
            shown.write_text(f'<!doctype html><body style="margin:0">{frame}</iframe></body>')
        words = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            f"--user-data-dir={folder}/profile",
            f"--window-size={max(width, 500)},{height}",
            f"--screenshot={target}",
        ]
        subprocess.run([browser, *words, shown.as_uri()], check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    main()
