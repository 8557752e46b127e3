"""NIPS.md and nips/: the parts of each document, examples as the vectors have them, references that lead somewhere."""

import json
import re
import subprocess
from itertools import pairwise

import pytest

from nodewire import errors
from nodewire.protocol import kinds
from tests import nips_pages as pages

ROOT = pages.ROOT
INDEX = pages.INDEX.read_text()
TEXTS = {path.name: path.read_text() for path in pages.PAGES}
PARTS = ["Terms", "Messages", "The sender MUST", "The receiver MUST", "Rationale", "Vectors"]
DRAWN = {"States": "stateDiagram-v2", "Diagram": "flowchart"}
"""What a document has one diagram of: by the section's name, how mermaid's text begins."""
LEAST_BYTES, MOST_BYTES = 5_000, 15_000
GIFT_WRAP = 21_059
"""A kind of NIP-59's, and none of ours."""

every_page = pytest.mark.parametrize("name", TEXTS)


def test_the_index_lists_every_document_once_in_order():
    listed = re.findall(r"^\| \[(\d\d .*?)\]\(nips/(\S+?)\)", INDEX, re.MULTILINE)
    assert [file for _, file in listed] == list(TEXTS)
    for title, file in listed:
        assert TEXTS[file].startswith(f"# {title}\n"), file


@every_page
def test_a_document_has_its_parts_and_size(name):
    text = TEXTS[name]
    assert LEAST_BYTES <= len(text.encode()) <= MOST_BYTES
    assert pages.header(text, "Status") == "draft"
    for line in ("Kinds", "Depends on"):
        assert pages.header(text, line)
    parts = pages.sections(text)
    (drawn,) = set(parts) - set(PARTS)
    assert drawn in DRAWN
    assert list(parts)[:3] == [*PARTS[:2], drawn]
    assert list(parts)[-2:] == PARTS[-2:]


@every_page
def test_requirements_are_numbered_one_by_one(name):
    parts = pages.sections(TEXTS[name])
    for part in ("The sender MUST", "The receiver MUST"):
        numbers = [int(number) for number in re.findall(r"^(\d+)\. ", parts[part], re.MULTILINE)]
        assert numbers, part
        assert numbers[0] in (0, 1), part
        assert all(after == before + 1 for before, after in pairwise(numbers)), (part, numbers)


@every_page
def test_vectors_are_files_that_exist(name):
    said = pages.sections(TEXTS[name])["Vectors"].strip()
    files = re.findall(r"`(tests/vectors/[\w.]+)`", said)
    assert files or said.startswith("none: no ")
    for path in re.findall(r"`((?:tests|nodewire|simnet)/[\w./]+)`", TEXTS[name]):
        is_tag = re.search(r"/\d", path)
        assert is_tag or (ROOT / path).exists(), path


@every_page
def test_a_document_has_one_diagram(name):
    parts = pages.sections(TEXTS[name])
    found = [
        (part, kind) for part, text in parts.items() for kind in re.findall(r"^```mermaid\n(\S+)", text, re.MULTILINE)
    ]
    assert len(found) == 1
    ((part, kind),) = found
    assert DRAWN.get(part) == kind


@every_page
def test_a_documents_flowchart_has_each_edge_once_and_no_part_alone(name):
    parts = pages.sections(TEXTS[name])
    if "Diagram" not in parts:
        return
    (chart,) = re.findall(r"```mermaid\nflowchart (?:TD|LR)\n(.*?)```", parts["Diagram"], re.DOTALL)
    bare = re.sub(r'(?:\[|\{|\()+".*?"(?:\]|\}|\))+', "", chart)
    ends = r"^ +(\w+) (?:-->|---|-\.->|-- .*? -->|-\. .*? \.->) (\w+)$"
    edges = re.findall(ends, bare, re.MULTILINE)
    assert edges
    assert len(edges) == len(re.findall(r"-->|---|\.->", bare)) == len(set(edges))
    assert set(re.findall(r"^ +(\w+)$", bare, re.MULTILINE)) - {"end"} <= {end for edge in edges for end in edge}


@every_page
def test_a_documents_states_can_all_be_reached(name):
    parts = pages.sections(TEXTS[name])
    if "States" not in parts:
        return
    (diagram,) = re.findall(r"```mermaid\nstateDiagram-v2\n(.*?)```", parts["States"], re.DOTALL)
    for part in re.split(r"^    state .*\{$", diagram, flags=re.MULTILINE):
        edges = re.findall(r"^\s+(\[\*\]|\w+) --> (\[\*\]|\w+)", part, re.MULTILINE)
        if not edges:
            continue
        reached = {"[*]"}
        while more := {after for before, after in edges if before in reached} - reached:
            reached |= more
        assert reached == {end for edge in edges for end in edge}
        assert len(edges) == len(set(edges))


@every_page
def test_examples_are_the_committed_vectors(name):
    assert pages.with_examples(TEXTS[name]) == TEXTS[name]


def test_no_vector_of_examples_is_left_out():
    shown = {name for text in TEXTS.values() for name in re.findall(r"example: examples1.json (\w+)", text)}
    beside = {"complaint_case", "result_said", "round_ticket", "sample_key", "wire_auth_certificate"}
    assert shown | beside == set(json.loads((pages.VECTORS / "examples1.json").read_text()))


@pytest.mark.parametrize("page", [pages.INDEX, *pages.PAGES], ids=lambda path: path.name)
def test_every_link_leads_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", pages.without_code(page.read_text()))
    assert links
    for link in links:
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        assert not anchor or anchor in pages.anchors(target.read_text()), link


def test_every_kind_is_in_one_documents_header():
    rows = re.findall(r"^\| (?!use|---)[^|]*\| ([^|]*) \|", pages.sections(INDEX)["Kinds"], re.MULTILINE)
    table = {kind for row in rows for kind in pages.kinds_in(row)} - {GIFT_WRAP}
    headers = [kind for text in TEXTS.values() for kind in pages.kinds_in(pages.header(text, "Kinds"))]
    assert sorted(headers) == sorted(table)
    named = {number for number in vars(kinds).values() if isinstance(number, int)}
    asked = (*kinds.TRAINING, kinds.INFERENCE, kinds.VERIFICATION)
    assert table == named | {kinds.result_of(kind) for kind in asked}


def test_the_indexs_kinds_are_the_documents():
    listed = re.findall(r"^\| \[\d\d .*?\]\(nips/(\S+?)\) \|[^|]*\|([^|]*)\|", INDEX, re.MULTILINE)
    for file, said in listed:
        assert pages.kinds_in(said) == pages.kinds_in(pages.header(TEXTS[file], "Kinds")), file


def _errors(cls=errors.NodewireError):
    return [cls, *(one for below in cls.__subclasses__() for one in _errors(below))]


def test_the_table_of_errors_is_the_codes():
    rows = re.findall(r"^\| `([a-z-]+)` \| (yes|) ?\| (\w*) ?\|", pages.sections(INDEX)["Errors"], re.MULTILINE)
    ours = {cls.code: cls for cls in _errors() if cls.__module__ == errors.__name__}
    assert {code for code, _, _ in rows} == set(ours)
    for code, retryable, pays in rows:
        assert (retryable == "yes", pays or "nobody") == (ours[code].retryable, ours[code].pays), code


def test_every_reference_to_the_protocol_leads_somewhere():
    """Code, docs and tests name documents by path or number; the text of a link has the number of its document."""
    listed = subprocess.run(["git", "ls-files", "*.py", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True)
    numbers = {name[:2] for name in TEXTS}
    for file in listed.stdout.split():
        if file == "tests/test_nips.py":
            continue
        text = (ROOT / file).read_text()
        for name in re.findall(r"\bnips/(\d\d[\w-]+\.md)", text):
            assert name in TEXTS, (file, name)
        for number in re.findall(r"\bnips/(\d\d)\b(?!-)", text):
            assert number in numbers, (file, number)
        for number in re.findall(r"\bNIPS(?:\.md)?,? (?:sections? )?(\d+(?:\.\d+)?)", text):
            assert number in numbers, (file, number)
        for said, number in re.findall(r"\[(?:NIPS )?(\d[\d.]*)[^\]]*\]\((?:\.\./)*(?:nips/)?(\d\d)-[a-z]", text):
            assert said == number, (file, said, number)
