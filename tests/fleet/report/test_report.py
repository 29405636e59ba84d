"""`duckctl report` over a store: what the page says, what changed, the three forms, the exit code."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from duckfleet.fleet.cli import run
from duckfleet.fleet.report import archive
from duckfleet.fleet.report.changes import compare
from duckfleet.fleet.report.page import Page
from duckfleet.fleet.report.run import make_report
from tests.fleet.report.pond import HELD, NUM_DUCKS, SICK, Pond, name


def told(page: Page) -> set[tuple[str, str]]:
    return {(change.duck, change.text) for change in page.changes}


def duckctl(pond: Pond, *arguments: str) -> int:
    return run(["--state", str(pond.state), "--site", str(pond.site_path), *arguments])


def test_a_clean_fleet_is_a_report_without_findings(pond: Pond, capsys: pytest.CaptureFixture[str]) -> None:
    pond.fill(sick=False)
    assert duckctl(pond, "report") == 0
    verdict, path = capsys.readouterr().out.splitlines()
    assert verdict == f"no findings; {NUM_DUCKS} of {NUM_DUCKS} ducks can serve"
    assert Path(path).read_text() == (pond.state / "reports/latest.html").read_text()


def test_a_missing_module_is_found_and_is_the_exit_code(pond: Pond, capsys: pytest.CaptureFixture[str]) -> None:
    pond.fill()
    assert duckctl(pond, "report", "--json") == 13
    report = json.loads(capsys.readouterr().out)
    assert report["worst"] == "degraded" and report["exit_code"] == 13
    (finding,) = report["findings"]
    assert finding["duck"] == name(SICK) and finding["causes"][0]["code"] == "dimm_missing"
    (work,) = report["work"]
    assert work["rack"] == f"A{SICK}" and "memory module" in work["parts"]
    cell = next(cell for cell in report["cells"] if cell["duck"] == name(SICK))
    assert cell["severity"] == "degraded" and not cell["is_ready"]


def test_the_next_report_says_what_changed_and_the_one_after_it_nothing(pond: Pond) -> None:
    pond.fill(sick=False)
    first = make_report(pond.context).rendered.page
    assert first.changes == () and first.previous_at_s == 0.0
    pond.now_s += 60
    pond.fill(1)
    pond.hold(HELD, "fan rattles")
    second = make_report(pond.context).rendered.page
    assert second.previous_at_s == first.at_s
    changes = told(second)
    assert (name(SICK), "was healthy, is degraded") in changes
    assert (name(HELD), "held: fan rattles (human, by nurse)") in changes
    assert any(duck == name(SICK) and text.startswith("new: ") for duck, text in changes)
    assert any(duck == name(SICK) and text.startswith("Memory read bandwidth: -5") for duck, text in changes)
    assert all(duck in (name(SICK), name(HELD)) for duck, _ in changes), "the others are as they were"
    third = make_report(pond.context).rendered.page
    assert third.changes == ()
    assert [past.num_findings for past in third.history] == [0, 1, 1]


def test_what_is_mended_is_told_as_better(pond: Pond) -> None:
    pond.fill()
    make_report(pond.context)
    pond.now_s += 60
    pond.fill(1, sick=False)
    page = make_report(pond.context).rendered.page
    assert page.worst == "" and page.exit_code == 0
    assert {change.direction for change in page.changes if change.duck == name(SICK)} == {"better"}


def test_the_whole_fleet_moving_is_one_change(pond: Pond) -> None:
    pond.fill(sick=False)
    old = make_report(pond.context).rendered.page
    slower = tuple(
        dataclasses.replace(
            trend,
            series=tuple(
                dataclasses.replace(
                    series,
                    times_s=(*series.times_s, series.times_s[-1] + 60),
                    values=(*series.values, 0.8 * series.values[-1]),
                )
                for series in trend.series
            ),
        )
        for trend in old.trends
        if trend.name == "read_bandwidth"
    )
    (change,) = compare(old, dataclasses.replace(old, trends=slower))
    assert (change.direction, change.duck, change.text) == (
        "worse",
        "",
        "Memory read bandwidth of the fleet: -20% (median)",
    )


def test_a_report_comes_back_from_its_json(pond: Pond) -> None:
    pond.fill()
    pond.hold(HELD, "fan rattles")
    rendered = make_report(pond.context).rendered
    assert archive.page_of(rendered.json) == rendered.page


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 99}', '{"format": 1, "cells": 3}', "[" * 100_000])
def test_a_damaged_last_report_is_said_and_stops_nothing(pond: Pond, text: str) -> None:
    pond.fill(1)
    folder = pond.state / "reports"
    folder.mkdir()
    (folder / "latest.json").write_text(text)
    page = make_report(pond.context).rendered.page
    assert page.previous_at_s == 0.0 and "latest.json cannot be compared with" in page.previous_error
    assert make_report(pond.context).rendered.page.previous_at_s == page.at_s


def test_old_reports_are_removed(pond: Pond) -> None:
    pond.fill(1, sick=False)
    rendered = make_report(pond.context).rendered
    folder = pond.state / "reports"
    for number in range(archive.KEEP + 5):
        page = dataclasses.replace(rendered.page, at_s=rendered.page.at_s + 60 * number)
        archive.save(folder, archive.Rendered(page, "h", "m", "{}"))
    kept = [path for path in folder.glob("2*.html")]
    assert len(kept) == archive.KEEP and rendered.stem not in {path.stem for path in kept}


def test_a_site_without_ducks_and_a_store_without_probes_have_their_report(pond: Pond) -> None:
    empty = make_report(pond.context).rendered
    assert empty.page.trends == () and empty.page.num_ready == 0
    pond.site_path.write_text(pond.site_path.read_text().partition("[[ducks]]")[0])
    assert "The site file names no ducks" in make_report(pond.context).rendered.html


class _Tags(HTMLParser):
    """Ids, references, and whether every element that must be closed is closed in its order."""

    VOID = ("meta", "link", "br", "img", "input", "hr")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.tags: set[str] = set()
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for key, value in attrs:
            if key == "id":
                self.ids.append(value or "")
            if key in ("href", "xlink:href", "src"):
                (self.targets if (value or "").startswith("#") else self.fetched).append(value or "")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone_and_is_well_formed(pond: Pond) -> None:
    pond.fill()
    make_report(pond.context)
    html = make_report(pond.context).rendered.html
    tags = _Tags()
    tags.feed(html)
    assert tags.open == []
    assert "script" not in tags.tags and tags.fetched == ["data:,"], "nothing is fetched"
    assert len(tags.ids) == len(set(tags.ids))
    assert {target[1:] for target in tags.targets} <= set(tags.ids)
    assert not re.search(r"#0102\d\d", html), "every stand-in colour is a variable of the page"
    pictures = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(pictures) == 3
    for picture in pictures:
        ElementTree.fromstring(picture)


def test_text_of_ducks_and_people_is_never_markup(pond: Pond) -> None:
    pond.fill(1, sick=False)
    pond.hold(HELD, '<script>alert("x")</script> | [link](http://evil) `x`\n# top')
    rendered = make_report(pond.context).rendered
    assert "<script" not in rendered.html and "&lt;script&gt;" in rendered.html
    assert not re.search(r"(?<!\\)<script", rendered.markdown) and "\n# top" not in rendered.markdown
    row = next(line for line in rendered.markdown.splitlines() if line.startswith(f"| {name(HELD)} "))
    assert len(re.findall(r"(?<!\\)\|", row)) == 6, "one row of five cells"


def test_files_and_standard_output(pond: Pond, capsys: pytest.CaptureFixture[str]) -> None:
    pond.fill(1)
    page = pond.state / "out.html"
    assert duckctl(pond, "report", "--html", str(page), "--markdown", "-") == 13
    out = capsys.readouterr().out
    assert out.startswith("# pond: 1 finding") and page.read_text().startswith("<!doctype html>")
    assert out == (pond.state / "reports/latest.md").read_text()
