"""The demo's recording is what its log said, in 30 seconds, and the SVG in docs/ is the cast's."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from tools.recording import COLUMNS, IMAGES, SECONDS, BadCast, Look, cast_of, screen_of, svg_of

LOG = """\
\x1b[1;36m»\x1b[0m nodewire
nodewire is a marketplace.
» 0:00  a relay
  ready
✓ all is well
All of it is in /home/somebody/demo-report.json.
"""
HEADER = json.dumps({"version": 2, "width": 10, "height": 2, "title": "t"}) + "\n"


def cast(*events: list) -> str:
    return HEADER + "".join(json.dumps(one) + "\n" for one in events)


def test_a_cast_has_the_logs_lines_from_the_introduction_to_the_last_that_is_for_others():
    header, *events = (json.loads(line) for line in cast_of(LOG).splitlines())
    assert (header["version"], header["width"]) == (2, COLUMNS)
    assert "30 seconds" in header["title"]
    times = [at_s for at_s, *_ in events]
    assert times == sorted(times) and times[0] == 0 and times[-1] < SECONDS
    said = [line.text for line in screen_of(cast_of(LOG))]
    assert said == ["$ make demo", "nodewire is a marketplace.", "» 0:00  a relay", "  ready", "✓ all is well"]


@pytest.mark.parametrize("log", ["", "nodewire is cut off", "All of it is in x"])
def test_a_log_without_beginning_or_end_is_refused(log):
    with pytest.raises(BadCast, match="whole `make demo`"):
        cast_of(log)


def test_a_screen_wraps_lines_and_keeps_looks_and_the_time_of_each_lines_first_character():
    long = screen_of(cast([0.5, "o", "\x1b[1;36mab\x1b[0m c"], [1.5, "o", "defghijk\r\n\r\nz"]))
    assert [(line.at_s, line.text) for line in long] == [(0.5, "ab cdefghi"), (1.5, "jk"), (1.5, ""), (1.5, "z")]
    assert long[0].cells[1] == ("b", Look(bold=True, colour=36)) and long[0].cells[2] == (" ", Look())


@pytest.mark.parametrize("said", ["\x1b[2J", "50 %\r", "\x1b[38;5;1mx"])
def test_what_moves_the_cursor_or_has_another_colour_is_refused(said):
    with pytest.raises(BadCast):
        screen_of(cast([0.0, "o", said]))


def test_a_cast_of_another_version_is_refused():
    with pytest.raises(BadCast, match="line 1"):
        screen_of(json.dumps({"version": 1}))


def test_an_svg_scrolls_as_far_as_its_lines_need_and_escapes_what_was_said():
    drawn = svg_of(cast([0.0, "o", "<a>&\r\n"], [1.0, "o", "b\r\n"], [2.0, "o", "c\r\n"]))
    texts = [text.text for text in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["<a>&", "b", "c"]
    assert "translateY(-19px)" in drawn and "translateY(-38px)" not in drawn


def test_the_svg_in_docs_is_made_of_the_cast_in_docs():
    assert (IMAGES / "demo.svg").read_text() == svg_of((IMAGES / "demo.cast").read_text())


@pytest.mark.parametrize("name", ["demo.svg", "market.svg"])
def test_a_picture_needs_nothing_from_elsewhere(name):
    tree = ET.fromstring((IMAGES / name).read_text())
    assert tree.find("{http://www.w3.org/2000/svg}title") is not None
    for element in tree.iter():
        assert not element.tag.endswith(("script", "image", "foreignObject"))
        assert all(value.startswith("#") for key, value in element.attrib.items() if key.endswith("href"))
