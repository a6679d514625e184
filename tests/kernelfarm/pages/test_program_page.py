"""The page of a program: complete, escaped, self-contained, and small for many kernels."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from kernelfarm.pages.farm_pages import error_page
from kernelfarm.pages.program_page import program_page
from tests.support.explained_programs import HOSTILE, hostile_view
from tests.support.page_data import data_blocks

MOST_KERNEL_BYTES = 25_000  # so that 300 kernels take a few megabytes


class Page(HTMLParser):
    """What a browser's parser would find: tags, attributes, text and scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.raw: dict[str, list[tuple[dict[str, str], str]]] = {"script": [], "style": []}
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.tags.append((tag, named))
        if tag in self.raw:
            self.raw[tag].append((named, ""))

    def handle_data(self, data: str) -> None:
        if self.tags and self.lasttag in self.raw and self.cdata_elem:
            attrs, text = self.raw[self.lasttag][-1]
            self.raw[self.lasttag][-1] = (attrs, text + data)
        else:
            self.texts.append(data)

    def named(self, tag: str) -> list[dict[str, str]]:
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture(scope="module")
def text() -> str:
    return program_page(f"model {HOSTILE}", [hostile_view()])


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_hostile_names_are_text(page: Page) -> None:
    assert page.named("img") == []
    for tag, attrs in page.tags:
        assert not [name for name in attrs if name.startswith("on") or name == "style"], tag
        for name in ("href", "src"):
            assert attrs.get(name, "#").startswith("#"), (tag, attrs)
    joined = "".join(page.texts)
    # The title, a tag, a location, a guard, a note, a refusal and an outcome.
    assert joined.count(HOSTILE) > 12
    assert "49" not in {text.strip() for text in page.texts}  # {{7*7}} is no template


def test_the_policy_names_the_style_and_the_script_and_nothing_else(page: Page) -> None:
    (policy,) = (
        attrs["content"]
        for attrs in page.named("meta")
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    (script,) = (text for attrs, text in page.raw["script"] if "type" not in attrs)
    (style,) = (text for _, text in page.raw["style"])
    assert policy == (
        f"default-src 'none'; script-src {sha256(script)}; style-src {sha256(style)};"
        " base-uri 'none'; form-action 'none'"
    )
    assert "unsafe" not in policy and "http" not in policy


def sha256(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_page_refers_to_nothing_outside(text: str) -> None:
    shown = re.sub(r'<script type="application/octet-stream".*?</script>', "", text, flags=re.S)
    assert re.findall(r"(?:https?:)?//[a-z]+\.", shown) == []
    assert "@import" not in shown and "url(" not in shown.replace("url(#p0-arrow)", "")


def test_every_kernel_has_its_stages_with_linked_lines(text: str) -> None:
    texts, *kernels = data_blocks(text)
    assert set(texts) == {"aten", "prims", "report"}
    assert len(kernels) == 3
    for kernel in kernels:
        assert [pane["name"] for pane in kernel["common"]] == ["aten", "prims", "loops"]
        assert [variant["name"] for variant in kernel["variants"]] == ["variant 0", "general"]
        for number, variant in enumerate(kernel["variants"]):
            panes = {p["name"]: p for p in kernel["panes"] if p["variant"] == number}
            assert list(panes) == ["triton", "ttir", "ttgir", "ptx", "cubin"]
            assert panes["triton"]["kind"] == panes["ttir"]["kind"] == "l"
            assert variant["statementsOf"] == {"9": [0], "10": [1], "11": [2], "12": [3], "13": [4]}
            assert "no origin" in panes["ptx"]["how"] and panes["ptx"]["marks"] == []
            assert "A binary of 2 KiB" in panes["cubin"]["how"]


def test_facts_of_the_cache_and_of_the_toolchain_are_shown(page: Page) -> None:
    shown = "".join(page.texts)
    for wanted in (
        "2027-01-15 08:00:00 UTC",
        "0123456789abcdef",
        "7 of incarnation",
        "op:aten.add.Tensor",
        "the address of buffer 0 is a multiple of 16",
        "compile time: 1,234 ms",
        "tmp0 16 KiB",
        "not fused with step 1",
    ):
        assert wanted in shown, wanted


def test_each_step_is_drawn_and_each_link_has_an_end(page: Page) -> None:
    boxes = [a for a in page.named("a") if a.get("class", "").startswith("box ")]
    assert [box["href"] for box in boxes] == ["#p0-k0", "#p0-k1", "#p0-s2", "#p0-k2"]
    assert [box["tabindex"] for box in boxes] == ["0", "-1", "-1", "-1"]
    ids = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    links = {attrs["href"].removeprefix("#") for attrs in page.named("a")}
    assert links <= ids
    assert len([p for p in page.named("path") if p.get("class") == "edge"]) == 3


def test_each_further_kernel_adds_little_to_a_page(text: str) -> None:
    larger = program_page(f"model {HOSTILE}", [hostile_view(23)])
    assert len(larger.encode()) - len(text.encode()) < 20 * MOST_KERNEL_BYTES


def test_the_same_program_gives_the_same_page(text: str) -> None:
    assert program_page(f"model {HOSTILE}", [hostile_view()]) == text


def test_text_that_is_no_utf8_is_replaced() -> None:
    assert "half ? of a pair" in error_page("error", "half \ud800 of a pair")
