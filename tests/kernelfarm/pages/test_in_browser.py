"""The page of a program in a real browser: keyboard, narrow screen, dark mode, policy, search."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from kernelfarm.pages.program_page import program_page
from tests.support.browser import DESKTOP, PHONE, Browser
from tests.support.explained_programs import hostile_view

pytestmark = pytest.mark.third_party

MOST_BYTES = 8_000_000
OPENED = "return document.querySelector('#p0-k1 .panes .lines')"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "program.html"
    path.write_text(program_page("model", [hostile_view(), hostile_view(6)]), encoding="utf-8")
    return path


@pytest.fixture
def browser(browser_window: Browser, page: Path) -> Iterator[Browser]:
    """The window with the page; fails the test if the page reported an error or was attacked."""
    browser_window.open(page)
    yield browser_window
    assert browser_window.messages() == []
    assert browser_window.run("return window.hacked") is None


def test_the_keyboard_reaches_a_kernel_and_its_corresponding_lines(browser: Browser) -> None:
    browser.press(Keys.TAB)
    assert browser.run("return document.activeElement.className") == "skip"
    browser.press(Keys.ENTER, Keys.TAB)
    assert browser.run("return document.querySelector('#main').contains(document.activeElement)")
    browser.tab_to("e.matches('#p0-k1 > summary')")
    browser.press(Keys.ENTER)
    browser.wait(OPENED, "the stages are shown")
    browser.tab_to(
        "e.matches('#p0-k1 .lines') && e.getAttribute('aria-label').startsWith('triton')"
    )
    browser.press(Keys.HOME, *[Keys.ARROW_DOWN] * 10)
    marked = browser.run(MARKED)
    assert marked == {
        "aten": ["%2: f32[4096]@[1] = aten.add.Tensor(%1, 1.5) at 1"],
        "prims": ["%2: f32[4096] = add(%1, %1) from [1]"],
        "loops": ["  %2: f32 = add %0, %1"],
        "triton": ["    add_2 = in0_0 + literal_1"],
        "ttir": ["    %add_2 = arith.addf %in0_0, %c : tensor<1xf32> loc(#loc4)"],
        "ttgir": ["    %add_2 = arith.addf %in0_0, %c : tensor<1xf32> loc(#loc4)"],
        "ptx": [],
    }
    status = browser.run("return document.querySelector('#p0-k1 [role=status]').textContent")
    assert status.startswith("triton, line 11: corresponding lines: 1 in aten, 1 in prims")


MARKED = """
const found = {};
document.querySelectorAll('#p0-k1 .pane').forEach((pane) => {
  if (pane.querySelector('.lines')) found[pane.getAttribute('aria-label')] =
    Array.from(pane.querySelectorAll('.marked'), (line) => line.textContent);
});
return found;
"""


def test_the_focus_is_always_visible(browser: Browser) -> None:
    browser.run("document.querySelector('#p0-k0').open = true")
    browser.wait("return document.querySelector('#p0-k0 .panes .lines')", "the stages are shown")
    invisible = []
    for _ in range(40):
        browser.press(Keys.TAB)
        invisible += browser.run(INVISIBLE_FOCUS)
    assert invisible == []


INVISIBLE_FOCUS = """
const e = document.activeElement;
if (e === document.body) return [];
const box = e.matches('.box') ? getComputedStyle(e.querySelector('rect')) : null;
const isVisible = box ? parseFloat(box.strokeWidth) >= 3
  : parseFloat(getComputedStyle(e).outlineWidth) >= 2;
const at = e.getBoundingClientRect();
const isOnScreen = at.right > 0 && at.bottom > 0 && at.top < innerHeight && at.left < innerWidth;
return isVisible && isOnScreen ? [] : [e.outerHTML.slice(0, 80)];
"""


def test_arrow_keys_walk_the_graph_and_enter_opens_a_kernel(browser: Browser) -> None:
    browser.tab_to("e.matches('.box')")
    browser.press(Keys.ARROW_DOWN)
    label = browser.run("return document.activeElement.getAttribute('aria-label')")
    assert label.startswith("step 1: fused_add_exp_00000001")
    browser.press(Keys.ENTER)
    browser.wait(OPENED, "the kernel of step 1 is opened")
    assert browser.run("return document.activeElement.matches('#p0-k1 > summary')")
    # The graph is one stop of the Tab key, and remembers its step.
    browser.run("document.querySelector('.graph').focus()")
    browser.press(Keys.TAB)
    assert browser.run("return document.activeElement.getAttribute('aria-label')") == label
    browser.press(Keys.TAB)
    assert not browser.run("return document.activeElement.matches('.box')")


def test_the_filter_and_the_search_find_kernels_and_lines(browser: Browser) -> None:
    browser.tab_to("e.matches('.filter')")
    browser.press(*"00002")
    assert shown_kernels(browser) == ["fused_add_exp_00000002"]
    browser.tab_to("e.matches('.query')")
    browser.press(*"%add_2 =", Keys.ENTER)
    count = "return document.querySelector('.count').textContent"
    browser.wait(
        f"{count.replace('return ', 'return (')} ).includes('found')", "the search is done"
    )
    # Two stages of two variants of three kernels.
    assert browser.run(count) == "12 lines found"
    browser.tab_to("e.matches('.found a')")
    browser.press(Keys.ENTER)
    browser.wait("return document.activeElement.matches('.lines')", "the line is shown")
    active = browser.run("return document.activeElement.querySelector('.active').textContent")
    assert "%add_2 =" in active


def shown_kernels(browser: Browser) -> list[str]:
    return browser.run(
        "return Array.from(document.querySelectorAll('#p0-kernels details.kernel'))"
        ".filter((k) => !k.hidden).map((k) => k.querySelector('.name').textContent)"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_enough_contrast(browser: Browser, page: Path, scheme: str) -> None:
    browser.open(page, DESKTOP, scheme)
    browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    browser.wait(OPENED, "the stages are shown")
    browser.run("document.querySelectorAll('#p0-k1 .lines')[2].children[8].click()")
    worst = browser.run(CONTRAST)
    assert worst["ratio"] >= 4.5, worst  # WCAG 2.2, 1.4.3


CONTRAST = """
const parse = (text) => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
const light = (rgb) => {
  const linear = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = rgb.map((c) => linear(c / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (e) => {
  for (let at = e; at; at = at.parentElement) {
    const c = parse(getComputedStyle(at).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c.slice(0, 3);
  }
  return [255, 255, 255];
};
let worst = {ratio: 99};
document.querySelectorAll('body *').forEach((e) => {
  const hasText = Array.from(e.childNodes).some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!hasText || !e.getClientRects().length || e.matches('script, style, title, .skip')) return;
  const style = getComputedStyle(e);
  const isDrawn = e.matches('svg text');
  const rect = isDrawn && !e.matches('.label') ? e.closest('a').querySelector('rect') : null;
  const box = rect ? parse(getComputedStyle(rect).fill) : behind(e);
  const ink = parse(isDrawn ? style.fill : style.color);
  const [a, b] = [light(ink.slice(0, 3)), light(box.slice(0, 3))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < worst.ratio) worst = {ratio, element: e.outerHTML.slice(0, 120)};
});
return worst;
"""


def test_a_narrow_screen_needs_no_sideways_scrolling(browser: Browser, page: Path) -> None:
    browser.open(page, PHONE)
    browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    browser.wait(OPENED, "the stages are shown")
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    wide = browser.run(
        "return Array.from(document.querySelectorAll('.pane:not([hidden])'))"
        ".filter((p) => p.getBoundingClientRect().right > innerWidth + 1).length"
    )
    assert wide == 0
    small = browser.run(
        "return Array.from(document.querySelectorAll('button, input, select, summary'))"
        ".filter((e) => e.getClientRects().length && e.getBoundingClientRect().height < 24)"
        ".map((e) => e.outerHTML)"
    )
    assert small == []  # WCAG 2.2, 2.5.8


def test_everything_that_takes_the_focus_has_a_name_and_a_role(browser: Browser) -> None:
    browser.run("document.querySelector('#p0-k0').open = true")
    browser.wait("return document.querySelector('#p0-k0 .panes .lines')", "the stages are shown")
    nodes = browser.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    unnamed = [
        node["role"]["value"]
        for node in nodes
        if not node.get("ignored")
        and any(p["name"] == "focusable" and p["value"]["value"] for p in node["properties"])
        and node["role"]["value"] not in ("RootWebArea", "main", "listitem")
        and not node.get("name", {}).get("value")
    ]
    assert unnamed == []
    ids = browser.run("return Array.from(document.querySelectorAll('[id]'), (e) => e.id)")
    assert len(ids) == len(set(ids))


def test_the_policy_stops_what_a_mistake_in_a_template_would_let_in(
    browser_window: Browser, page: Path
) -> None:
    browser_window.open(page)
    browser_window.run(
        "document.body.insertAdjacentHTML('beforeend',"
        " \"<img src=x: onerror='window.hacked=1'><p style='color:red'>x</p>\");"
        "const s = document.createElement('script'); s.textContent = 'window.hacked=2';"
        "document.body.append(s); document.body.lastElementChild.remove();"
    )
    assert browser_window.run("return window.hacked") is None
    refused = " ".join(browser_window.messages())
    for directive in ("script-src", "style-src"):
        assert directive in refused


@pytest.mark.slow  # the stages of 300 kernels are 60 MB of text, which takes seconds to compress
def test_a_program_of_300_kernels_stays_quick(browser_window: Browser, tmp_path: Path) -> None:
    path = tmp_path / "large.html"
    path.write_text(program_page("large", [hostile_view(300)]), encoding="utf-8")
    assert path.stat().st_size < MOST_BYTES
    browser_window.open(path)
    assert browser_window.run("return document.querySelectorAll('details.kernel').length") == 300
    browser_window.run("document.querySelector('.query').value = 'mov.u32 %r499, 149201'")
    browser_window.run("document.querySelector('.search button').click()")
    text = "document.querySelector('.count').textContent"
    browser_window.wait(f"return {text}.includes('found')", "the search is done")
    # One line of one stage of both variants of kernel 299.
    assert browser_window.run(f"return {text}") == "2 lines found"
    assert browser_window.messages() == []
