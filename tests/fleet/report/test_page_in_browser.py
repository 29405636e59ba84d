"""The report in a real browser, at desktop and phone width: the board, a finding, a plot, and a silent console."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from duckfleet.fleet.report.run import make_report
from tests.fleet.report.chromium import Tab, chromium
from tests.fleet.report.pond import HELD, NUM_DUCKS, SICK, Pond, name

WIDTHS = {"desktop": (1280, 900), "phone": (375, 812)}


class _Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of the second report on a pond, from a server on loopback."""
    pond = Pond(tmp_path_factory.mktemp("state"))
    pond.fill(sick=False)
    make_report(pond.context)
    pond.now_s += 60
    pond.fill(1)
    pond.hold(HELD, "fan rattles, a_very_long_word_that_has_no_place_to_break_in_the_middle_of_it_" * 2)
    make_report(pond.context)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Silent, directory=str(pond.state / "reports")))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/latest.html"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with chromium(tmp_path_factory.mktemp("browser") / "profile") as tab:
        yield tab


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("device", WIDTHS)
def test_the_page(tab: Tab, url: str, device: str, scheme: str, tmp_path: Path) -> None:
    tab.complaints.clear()
    tab.resize(*WIDTHS[device], is_phone=device == "phone", scheme=scheme)
    tab.open(url)
    tab.screenshot(tmp_path / f"{device}-{scheme}.png")

    cells = tab.value("[...document.querySelectorAll('#board .cell')].map(cell => cell.innerText)")
    assert len(cells) == NUM_DUCKS
    sick = next(text for text in cells if name(SICK) in text)
    assert "degraded" in sick and "A3" in sick

    (finding,) = tab.value("[...document.querySelectorAll('.finding')].map(finding => finding.innerText)")
    assert name(SICK) in finding and "memory module missing" in finding and "reseat" in finding

    plots = tab.value(
        "[...document.querySelectorAll('figure svg')].map(svg => [svg.getBoundingClientRect().width,"
        " svg.getBoundingClientRect().height, svg.querySelectorAll('path').length, svg.textContent])"
    )
    assert len(plots) == 3
    for width, height, num_paths, _ in plots:
        assert width > 250 and height > 120 and num_paths > 8
    assert name(SICK) in plots[0][3] and "GB/s" in plots[0][3]

    assert tab.value("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out to the right"
    assert tab.complaints == []


def test_a_duck_on_the_board_leads_to_its_finding(tab: Tab, url: str) -> None:
    tab.open(url)
    tab.value(f"[...document.querySelectorAll('#board a')].find(a => a.innerText == '{name(SICK)}').click()")
    assert tab.value(f"document.querySelector(':target').innerText.includes('{name(SICK)}')")


_CONTRAST = """
(() => {
  const light = rgb => { const [r, g, b] = rgb.match(/[\\d.]+/g).map(v => { v /= 255;
    return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4 }); return 0.2126 * r + 0.7152 * g + 0.0722 * b };
  const ground = node => { while (node) { const c = getComputedStyle(node).backgroundColor;
    if (!c.endsWith(', 0)')) return c; node = node.parentElement } return 'rgb(255, 255, 255)' };
  const poor = [];
  for (const node of document.querySelectorAll('h1,h2,h3,p,li,span,td,th,dd,dt,a,strong,summary,caption,text')) {
    if (![...node.childNodes].some(child => child.nodeType == 3 && child.data.trim())) continue;
    const style = getComputedStyle(node);
    const a = light(node.tagName == 'text' ? style.fill : style.color), b = light(ground(node));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push([node.tagName, node.textContent.slice(0, 40), ratio]);
  }
  return poor;
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_against_its_ground(tab: Tab, url: str, scheme: str) -> None:
    """A contrast of 4.5 : 1 (WCAG 2.2, 1.4.3)."""
    tab.resize(*WIDTHS["desktop"], scheme=scheme)
    tab.open(url)
    assert tab.value(_CONTRAST) == []
