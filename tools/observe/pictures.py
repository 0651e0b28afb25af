"""Pictures of all dashboards, drawn by Chromium from a live Prometheus.

    pictures.take(server, directory, minutes=2)  # {dashboard: {panel's title: drawn | empty | error}}
"""

import html.parser
import json
import shutil
import subprocess

import prometheus

WIDTH_PX = 1680
UNIT_PX, HEADER_PX = 32, 44 + 16  # viewer.js and viewer.css.
# Chromium runs a page's clock ahead while nothing is under way, and takes the picture when so much of it is over.
BUDGET_MS = 15_000


class Unavailable(Exception):
    """Why no pictures can be taken here."""


def chromium():
    for name in ("chromium-headless-shell", "chromium"):
        if shutil.which(name):
            return name
    raise Unavailable("Chromium is not installed; on Debian: apt install chromium-headless-shell")


class States(html.parser.HTMLParser):
    """What the page says of itself and of its panels."""

    def __init__(self):
        super().__init__()
        self.page, self.panels = None, {}

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag == "body":
            self.page = attributes.get("data-state")
        elif tag == "section" and attributes.get("class") != "row":
            self.panels[attributes["data-title"]] = attributes.get("data-state")


def _run(url, height, *flags):
    # The sandbox does not work for root, and all that is opened here is our own page.
    command = [chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
               "--disable-dev-shm-usage", f"--window-size={WIDTH_PX},{height}",
               f"--virtual-time-budget={BUDGET_MS}", *flags, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"Chromium exited with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def take(server, directory, minutes):
    """One PNG for each dashboard below `directory`; what became of each panel."""
    states = {}
    for path in sorted(prometheus.DASHBOARDS.glob("*.json")):
        panels = json.loads(path.read_text(encoding="utf-8"))["panels"]
        height = HEADER_PX + UNIT_PX * max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
        url = server.dashboard_url(path.stem, minutes=minutes, once=1)
        _run(url, height, f"--screenshot={directory / path.stem}.png")
        page = States()
        page.feed(_run(url, height, "--dump-dom"))
        if page.page != "done":
            raise RuntimeError(f"{path.stem} was not drawn: the page is {page.page}")
        states[path.stem] = page.panels
    return states
