"""What holds for the whole page: sizes, contrast, keyboard, colours."""

from __future__ import annotations

from typing import Any

import pytest
from view_polling import until

VIEWS = {
    "curves": ("runs=study--dat,lstm&values=accuracy,learning", "#learning-values table"),
    "sequence": ("tab=sequence&a=study--dat&b=study--tra&seq=draw-8-1&map=0-0", "#map-b image"),
    "anatomy": ("tab=anatomy&a=study--dat", "#causes .main-svg"),
}

#: texts whose contrast to what lies behind them is below 4.5, and how many were looked at
CONTRAST = """() => {
  const parse = text => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const over = (top, below) => {
    const alpha = top.length > 3 ? top[3] : 1;
    return [0, 1, 2].map(i => alpha * top[i] + (1 - alpha) * below[i]);
  };
  const behind = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement)
      layers.unshift(parse(getComputedStyle(e).backgroundColor));
    return layers.reduce((below, top) => top.length ? over(top, below) : below, [255, 255, 255]);
  };
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let looked = 0;
  while (walker.nextNode()) {
    const text = walker.currentNode.data.trim(), element = walker.currentNode.parentElement;
    if (!text || !element.checkVisibility({opacityProperty: true})) continue;
    if (element.closest('script, option, .skip')) continue;
    const style = getComputedStyle(element);
    const svg = element.namespaceURI.includes('svg');
    if (svg && style.fillOpacity === '0') continue;
    const below = behind(element);
    const ink = over(parse(svg ? style.fill : style.color), below);
    const [a, b] = [light(ink), light(below)].sort((x, y) => y - x);
    looked++;
    if ((a + 0.05) / (b + 0.05) < 4.5) found.push([text.slice(0, 40), (a + 0.05) / (b + 0.05)]);
  }
  return {found, looked};
}"""


@pytest.fixture(params=VIEWS)
def view(request: pytest.FixtureRequest) -> tuple[str, str]:
    return VIEWS[request.param]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_has_a_contrast_of_4_5(show: Any, view: tuple[str, str], theme: str) -> None:
    state, ready = view
    page = show(f"{state}&theme={theme}")
    page.wait_for_selector(ready, state="attached")
    seen = page.evaluate(CONTRAST)
    assert seen["looked"] > 20
    assert seen["found"] == []


@pytest.mark.parametrize("size", [(390, 844), (1366, 768), (2560, 1440)])
def test_page_fits_phone_laptop_and_projector(
    show: Any, view: tuple[str, str], size: tuple[int, int]
) -> None:
    state, ready = view
    page = show(state, size)
    page.wait_for_selector(ready, state="attached")
    taken, width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width == size[0]
    assert taken <= width
    for box in page.locator("main :is(button, select, input:not([type=checkbox])):visible").all():
        place = box.bounding_box()
        assert place["x"] >= 0
        assert place["x"] + place["width"] <= width + 1
        assert place["height"] >= 24


def test_every_control_is_reached_with_the_tab_key(show: Any, view: tuple[str, str]) -> None:
    state, ready = view
    page = show(state)
    page.wait_for_selector(ready, state="attached")
    controls = set(
        page.evaluate("""Array.from(document.querySelectorAll('a, button, select, input, summary'))
      .filter(e => e.checkVisibility() && !e.disabled && !e.closest('.skip'))
      .map((e, i) => e.dataset.control = e.id || String(i))""")
    )
    page.evaluate("document.body.focus()")
    reached = set()
    for _ in range(len(controls) + 15):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.dataset.control"))
    assert controls <= reached


#: what a finger does that swipes upwards over the figure
MOVES = [("touchMove", 15 * step) for step in range(1, 11)]
SWIPE = [("touchStart", 0), *MOVES, ("touchEnd", None)]


def test_swipe_over_a_figure_scrolls_the_page(show: Any) -> None:
    page = show("runs=study--dat", (390, 844), has_touch=True, is_mobile=True)
    page.wait_for_selector("#learning .main-svg")
    page.locator("#accuracy").scroll_into_view_if_needed()
    axes = "['xaxis', 'yaxis'].map(a => document.getElementById('accuracy')._fullLayout[a].range)"
    before, scrolled = page.evaluate(axes), page.evaluate("scrollY")
    box, session = page.locator("#accuracy").bounding_box(), page.context.new_cdp_session(page)
    for kind, way in SWIPE:
        place = {"x": box["x"] + 150, "y": box["y"] + 200 - (way or 0)}
        points = [] if way is None else [place]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    until(page, "was => scrollY > was + 50", scrolled)
    assert page.evaluate(axes) == before


def test_letters_of_figures_grow_on_a_projector(show: Any) -> None:
    sizes = []
    for size in ((1366, 768), (2560, 1440)):
        page = show("runs=study--dat", size)
        page.wait_for_selector("#learning .main-svg")
        sizes.append(page.evaluate("document.getElementById('accuracy').layout.font.size"))
    assert sizes == [13, 15]


def test_skip_link_leads_past_the_list_of_runs(show: Any) -> None:
    page = show("runs=study--dat")
    page.wait_for_selector("#learning .main-svg")
    page.focus("#skip")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "part"


def test_colours_follow_the_system_and_the_choice(show: Any) -> None:
    page = show("runs=study--dat", color_scheme="dark")
    page.wait_for_selector("#learning .main-svg")
    colour = "getComputedStyle(document.body).backgroundColor"
    curve = "document.getElementById('accuracy').data[1].line.color"
    dark = page.evaluate(colour), page.evaluate(curve)
    assert dark[0] == "rgb(22, 24, 27)"
    page.select_option("#theme", "light")
    plot = "document.getElementById('accuracy')"
    until(page, f"was => ({plot}?.data?.[1]?.line.color ?? was) !== was", dark[1])
    assert page.evaluate(colour) == "rgb(255, 255, 255)"
    assert page.evaluate(curve) != dark[1]


def test_texts_keep_their_contrast_if_the_system_turns_dark(
    show: Any, view: tuple[str, str]
) -> None:
    state, ready = view
    page = show(state, color_scheme="light")
    page.wait_for_selector(ready, state="attached")
    page.emulate_media(color_scheme="dark")
    until(page, f"({CONTRAST})().found.length === 0", seconds=30)
    until(page, f"({CONTRAST})().looked > 20", seconds=30)


def test_figures_of_a_chosen_theme_stay_if_the_system_turns_dark(show: Any) -> None:
    page = show("runs=study--dat&theme=light", color_scheme="light")
    page.wait_for_selector("#learning .main-svg")
    drawn = "document.querySelector('#learning .main-svg').dataset.drawn"
    page.evaluate(f"{drawn} = 'before'")
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(200)
    assert page.evaluate(drawn) == "before"


def test_tabs_and_back_button_move_between_views(show: Any) -> None:
    page = show("runs=study--dat")
    page.wait_for_selector("#learning .main-svg")
    page.click("#tab-sequence")
    page.wait_for_selector("#tokens")
    assert not page.is_visible("#curves")
    page.click("#tab-anatomy")
    page.wait_for_selector("#anatomy-run")
    page.go_back()
    page.wait_for_selector("#tokens")
    page.go_back()
    page.wait_for_selector("#learning .main-svg")
