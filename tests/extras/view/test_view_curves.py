"""The curves view in a browser: each control does what it says."""

from __future__ import annotations

from typing import Any

from view_polling import until

#: of the curves in a figure: the run, and how many points
TRACES = """id => (document.getElementById(id).data ?? []).map(t => ({
  run: t.meta, x: Array.from(t.x), y: Array.from(t.y), fill: t.fill,
  symbol: t.marker?.symbol, mode: t.mode, text: t.text}))"""


def traces(page: Any, figure: str = "accuracy") -> list[dict[str, Any]]:
    until(page, "id => document.getElementById(id)?.data", figure)
    return list(page.evaluate(TRACES, figure))


def drawn(page: Any, figure: str = "learning") -> list[str]:
    return sorted({trace["run"] for trace in traces(page, figure)})


def test_runs_are_chosen_in_the_list_and_kept_in_the_address(show: Any) -> None:
    page = show()
    assert drawn(page) == ["long", "lstm", "study--dat", "study--tra"]
    page.uncheck("input[value=lstm]")
    until(page, "!document.getElementById('legend-lstm')")
    assert "lstm" not in drawn(page)
    assert "study--dat" in page.url
    assert page.inner_text("#chosen-count") == "4 of 6 drawn"
    page.click("#choose-none")
    page.get_by_text("No run is chosen.").wait_for()
    page.fill("#filter", "hybrid dat")
    assert page.locator(".run:visible").count() == 1
    page.click("#choose-all")
    until(page, "document.querySelectorAll('.legend li').length === 1")
    assert drawn(page) == ["study--dat"]
    page.go_back()
    page.get_by_text("No run is chosen.").wait_for()
    page.go_back()
    until(page, "document.getElementById('filter').value === ''")
    assert page.locator(".run:visible").count() == 6


def test_run_of_another_version_says_why_it_cannot_be_read(show: Any) -> None:
    page = show()
    assert page.locator("input[value=old]").is_disabled()
    assert "its format is 99" in page.inner_text("#chooser")
    assert "no checkpoint yet" in page.inner_text("#chooser")


def test_mean_and_spread_by_default_and_single_seeds_on_demand(show: Any) -> None:
    page = show("runs=study--dat")
    band, mean = traces(page)
    assert band["fill"] == "toself"
    assert mean["x"] == [1, 2]
    assert "2 seeds" in mean["text"][0]
    assert "lowest" in mean["text"][0]
    page.check("#each")
    until(page, "location.hash.includes('each=1')")
    until(page, "document.getElementById('accuracy')?.data?.length === 2")
    one, other = traces(page)
    assert [one["text"][0][:6], other["text"][0][:6]] == ["seed 0", "seed 1"]
    assert [(a + b) / 2 for a, b in zip(one["y"], other["y"], strict=True)] == mean["y"]
    page.fill("#seeds", "1")
    page.keyboard.press("Enter")
    until(page, "document.getElementById('accuracy')?.data?.length === 1")
    assert traces(page)[0]["y"] == other["y"]


def test_chance_is_marked_at_the_training_length_and_said(show: Any) -> None:
    page = show("runs=study--dat&part=state")
    traces(page)
    level = page.evaluate(
        "fetch('data/runs.json').then(r => r.json())"
        ".then(c => c.runs.find(run => run.id === 'study--dat').chance.state)"
    )
    _, mark = page.evaluate("document.getElementById('accuracy').layout.shapes")
    assert (mark["y0"], mark["y1"]) == (level, level)
    assert mark["x0"] < 1 < mark["x1"]
    caption = page.inner_text("#accuracy-caption")
    assert caption.startswith("Part: state.")
    assert f"is chance: {100 * level:.1f}\u00a0%." in caption


def test_chance_of_several_tasks_says_whose_it_is(show: Any) -> None:
    page = show("runs=")
    names = ["runs", "run/study--dat"]
    catalogue, curves = page.evaluate(
        "ns => Promise.all(ns.map(n => fetch(`data/${n}.json`).then(r => r.json())))", names
    )
    (run,) = [run for run in catalogue["runs"] if run["id"] == "study--dat"]
    chances = {"one": 0.5, "two": 0.1, "three": 0.5, "four": 0.5, "five": 0.5}
    runs = [
        run | {"id": n, "label": f"run {n}", "chance": {"joint": c}} for n, c in chances.items()
    ]
    page.route("**/data/runs.json", lambda route: route.fulfill(json=catalogue | {"runs": runs}))
    page.route("**/data/run/*.json", lambda route: route.fulfill(json=curves))
    page.evaluate("location.hash = 'part=joint'")
    page.reload()
    page.get_by_text(
        "The short lines at 1 × are chance: 50.0 % (run one; run three; run four and 1 more), "
        "10.0 % (run two)."
    ).wait_for()
    marks = page.evaluate("document.getElementById('accuracy').layout.shapes.slice(1)")
    own = page.evaluate("document.getElementById('accuracy').data[3].line.color")
    assert marks[1]["line"]["color"] == own
    assert marks[0]["line"]["color"] != own


def test_legend_hides_an_arm_and_shows_it_again(show: Any) -> None:
    page = show("runs=study--dat,lstm")
    assert drawn(page) == ["lstm", "study--dat"]
    entry = page.locator("#legend-lstm")
    entry.click()
    page.wait_for_selector("#legend-lstm[aria-pressed=false]")
    assert drawn(page) == ["study--dat"]
    assert "hide=lstm" in page.url
    page.keyboard.press("Enter")  # it has kept the focus
    page.wait_for_selector("#legend-lstm[aria-pressed=true]")
    assert drawn(page) == ["lstm", "study--dat"]


def test_what_is_drawn_already_is_not_asked_for_again(show: Any) -> None:
    page = show("runs=study--dat,lstm")
    drawn(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.click("#legend-lstm")
    page.wait_for_selector("#legend-lstm[aria-pressed=false]")
    page.click("#legend-study--dat")
    for figure in ("accuracy", "learning"):
        page.locator(f"#{figure}-caption", has_text="All runs are hidden.").wait_for()
    page.check("#each")
    until(page, "location.hash.includes('each=1')")
    assert not [url for url in asked if "/data/" in url]


def test_other_views_open_with_a_run_that_is_drawn(show: Any) -> None:
    page = show("runs=new,study--tra")
    page.locator("#tab-anatomy").click()
    page.wait_for_selector("#anatomy-run")
    assert page.input_value("#anatomy-run") == "study--tra"


def test_part_and_learning_curve_can_be_chosen(show: Any) -> None:
    page = show("runs=study--dat")
    before = traces(page)[1]["y"]
    page.select_option("#part", "recall")
    until(page, "location.hash.includes('part=recall')")
    page.get_by_text("recall. Lines are means").wait_for()
    assert traces(page)[1]["y"] != before
    page.select_option("#learning-of", "probe:3")
    page.locator("#learning .ytitle", has_text="joint accuracy at 3 ×").wait_for()
    assert traces(page, "learning")[-2]["x"] == [10, 20, 30]


def test_learning_curve_of_one_point_has_a_marker(show: Any) -> None:
    for each, options in ((False, ""), (True, "&each=1")):
        page = show(f"runs=lstm,study--dat{options}")
        shown = [trace for trace in traces(page, "learning") if trace["fill"] != "toself"]
        points = {(trace["run"], len(trace["x"]), trace["mode"]) for trace in shown}
        assert points >= {("lstm", 1, "lines+markers"), ("study--dat", 6, "lines")}
        path = page.locator("#learning .scatterlayer path.point").count()
        assert path == (2 if each else 1) + 2, "the points of lstm, and two switches of DAT"
    alone = show("runs=lstm")
    alone.wait_for_selector("#learning .ytick")


def test_switch_of_dat_is_marked_and_values_show_on_hover(show: Any) -> None:
    page = show("runs=study--dat")
    marks = traces(page, "learning")[-1]
    assert marks["x"] == [10, 10]
    assert marks["text"][0] == "switch of seed 0, step 10"
    page.evaluate("Plotly.Fx.hover('accuracy', [{curveNumber: 1, pointNumber: 1}])")
    words = page.locator("#accuracy .hoverlayer").text_content()
    assert "hybrid, DAT" in words
    assert "2 ×, 2 seeds" in words


def test_switch_between_two_probes_is_on_the_line(show: Any) -> None:
    page = show("runs=")
    curves = page.evaluate("fetch('data/run/study--dat.json').then(r => r.json())")
    curves["events"] = [
        {"seed": seed, "step": step, "event": "switch"} for seed, step in ((0, 15), (1, 5))
    ]
    curves["probes"]["3"] = {"0": [[10, 20], [0.2, 0.6]], "1": [[10, 20], [0.1, 0.3]]}
    page.route("**/data/run/*.json", lambda route: route.fulfill(json=curves))
    page.evaluate("location.hash = 'runs=study--dat&each=1&learning=probe:3'")
    *_, marks = traces(page, "learning")
    assert marks["x"] == [15, 5]
    assert [round(y, 9) for y in marks["y"]] == [0.4, 0.1]  # before the first probe: at the foot


def test_values_are_in_tables_that_the_keyboard_opens(show: Any) -> None:
    page = show("runs=study--dat,study--tra")
    mean = traces(page)[1]
    page.focus("#accuracy-values-head")
    page.keyboard.press("Enter")
    table = page.locator("#accuracy-values table")
    table.wait_for()
    assert table.locator("thead th").all_inner_texts() == ["", "1 ×", "2 ×"]
    assert table.locator("tbody th").all_inner_texts() == ["hybrid, DAT"]  # the other has no test
    number = table.locator("a").nth(1)
    assert number.inner_text().startswith(f"{100 * mean['y'][1]:.1f}\u00a0% (")
    page.click("#learning-values-head")
    page.get_by_text(
        "hybrid, DAT: switch of seed 0, step 10; switch of seed 1, step 10."
    ).wait_for()
    heads = page.locator("#learning-values thead th").all_inner_texts()
    assert heads == ["", "5", "10", "15", "20", "25", "30"]
    assert "values=accuracy%2Clearning" in page.url
    other = show(page.url.split("#")[1] + "&each=1")
    other.locator("#accuracy-values tbody th", has_text="hybrid, DAT, seed 1").wait_for()
    number.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#tokens")
    assert "seq=draw-8-0" in page.url


#: where a point of the accuracy figure is on the screen
POINT = """index => {
  const plot = document.getElementById('accuracy'), {xaxis, yaxis} = plot._fullLayout;
  const trace = plot.data.at(-1), box = plot.getBoundingClientRect();
  return [box.x + xaxis._offset + xaxis.d2p(trace.x[index]),
          box.y + yaxis._offset + yaxis.d2p(trace.y[index])];
}"""


def test_tap_shows_the_value_and_a_link_to_a_sequence(show: Any) -> None:
    page = show("runs=study--dat", (390, 844), has_touch=True)
    traces(page)
    page.locator("#accuracy").scroll_into_view_if_needed()
    page.touchscreen.tap(*page.evaluate(POINT, 1))
    link = page.get_by_role("link", name="open a sequence of length 8")
    link.wait_for()
    assert page.inner_text("#accuracy-tapped").startswith("hybrid, DAT, 2 ×: ")
    assert "tab=sequence" not in page.url
    link.tap()
    page.wait_for_selector("#tokens")
    assert "seq=draw-8-0" in page.url


def test_seeds_that_cannot_be_read_or_are_not_there_are_named(show: Any) -> None:
    page = show("runs=study--dat&seeds=abc")
    page.get_by_text("seeds=abc: expected seeds such as 0,2-4. All seeds are drawn.").wait_for()
    assert "2 seeds" in traces(page)[1]["text"][0]
    for text, words in (("7-9", "seeds 7-9"), ("7", "seed 7")):
        page.fill("#seeds", text)
        page.keyboard.press("Enter")
        said = f"None of these runs has {words}."
        for figure in ("accuracy", "learning"):
            page.locator(f"#{figure}-caption", has_text=said).wait_for()
    page.fill("#seeds", "4-2")
    page.keyboard.press("Enter")
    page.get_by_text("seeds=4-2: expected seeds such as 0,2-4.").wait_for()


def test_seeds_that_only_some_runs_have_are_named(show: Any) -> None:
    page = show("runs=study--dat&seeds=0,7")
    page.get_by_text("None of these runs has seed 7.").wait_for()
    page.fill("#seeds", "1-3,7")
    page.keyboard.press("Enter")
    page.get_by_text("None of these runs has seeds 2-3,7.").wait_for()
    page.fill("#seeds", "1")
    page.keyboard.press("Enter")
    until(page, "!document.querySelector('.notes').textContent")
    curves = page.evaluate("fetch('data/run/study--dat.json').then(r => r.json())")
    catalogue = page.evaluate("fetch('data/runs.json').then(r => r.json())")
    (run,) = [run for run in catalogue["runs"] if run["id"] == "study--dat"]
    seeds = {"one": [0], "two": [0, 1, 2], "three": [0], "four": [0], "five": [0]}
    runs = [run | {"id": n, "label": f"run {n}", "seeds": s} for n, s in seeds.items()]
    page.route("**/data/runs.json", lambda route: route.fulfill(json=catalogue | {"runs": runs}))
    page.route("**/data/run/*.json", lambda route: route.fulfill(json=curves))
    page.evaluate("location.hash = 'seeds=0,2'")
    page.reload()
    page.get_by_text("No seed 2: run one; run three; run four and 1 more.").wait_for()
    page.evaluate("location.hash = 'seeds=0,2&hide=one,three,four,five'")
    until(page, "!document.querySelector('.notes').textContent")


def test_many_runs_leave_the_figures_near_the_top(show: Any) -> None:
    page = show("runs=")
    catalogue, curves = page.evaluate("""Promise.all(
      ['runs', 'run/study--dat'].map(name => fetch(`data/${name}.json`).then(r => r.json())))""")
    (run,) = [run for run in catalogue["runs"] if run["id"] == "study--dat"]
    runs = [run | {"id": f"r{i}", "label": f"a run of number {i}"} for i in range(150)]
    curves["status"] = "at step 10 of 30"
    page.route("**/data/runs.json", lambda route: route.fulfill(json=catalogue | {"runs": runs}))
    page.route("**/data/run/*.json", lambda route: route.fulfill(json=curves))
    page.evaluate("names => location.hash = `runs=${names}`", ",".join(r["id"] for r in runs))
    page.reload()
    traces(page)
    assert page.locator(".legend li").count() == 150
    assert page.locator("#accuracy").bounding_box()["y"] < 600
    styles = """document.getElementById('accuracy').data.filter(t => t.marker)
      .map(t => [t.line.color, t.line.dash, t.marker.symbol].join())"""
    drawn = page.evaluate(styles)
    assert (len(set(drawn[:28])), len(set(drawn[:140])), len(drawn)) == (28, 140, 150)
    assert len({style.rsplit(",", 1)[0] for style in drawn[:28]}) == 28  # lines without markers
    page.evaluate("location.hash = 'runs=r3,r31'")
    until(page, "document.querySelectorAll('.legend li').length === 2")
    assert len({style.rsplit(",", 1)[0] for style in page.evaluate(styles)}) == 2


def test_label_with_markup_is_shown_as_text(show: Any) -> None:
    page = show("runs=study--tra")
    assert page.inner_text("#legend-study--tra") == "hybrid <b>TRA</b>"
    traces(page, "learning")
    page.evaluate("Plotly.Fx.hover('learning', [{curveNumber: 1, pointNumber: 0}])")
    assert "hybrid <b>TRA</b>" in page.locator("#learning .hoverlayer").text_content()


def test_click_on_a_point_opens_a_sequence_of_that_length(show: Any) -> None:
    page = show("runs=study--dat")
    traces(page)
    page.evaluate("""document.getElementById('accuracy').emit('plotly_click',
      {points: [{x: 2, data: {meta: 'study--dat'}}]})""")
    page.wait_for_selector("#tokens")
    assert "seq=draw-8-0" in page.url
    assert page.locator(".token").count() == 2 * 8 + 1 + 2
