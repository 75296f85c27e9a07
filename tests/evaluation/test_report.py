import base64
import io
import math
from urllib.parse import quote

import pytest
from pages import (
    Page,
    Tab,
    dump_dom,
    enclosing,
    is_hidden,
    listening_proxy,
    needs_browser,
    page_of,
    pixels_of,
    screenshot,
)
from PIL import Image
from support import full_but
from written_samples import sample, samples

from trl_mmreason.evaluation.curves import Line, Plot, training_plots
from trl_mmreason.evaluation.evaluation_report import results_table
from trl_mmreason.evaluation.report import Mark, ReportTable, TableRow, write_report
from trl_mmreason.evaluation.results import summarise
from trl_mmreason.evaluation.trajectory import Piece, Trajectory, Turn, scored_pieces

SCRIPT = "<script>document.documentElement.dataset.attacked = 'yes'</script>"
BREAKOUT = "</div></script><img src=x onerror=\"document.documentElement.dataset.attacked = 'yes'\">"
QUOTE = "\" autofocus onfocus=\"document.documentElement.dataset.attacked = 'yes'"


def turn(correct, text="4", **fields):
    return Turn(pieces=[Piece(text)], correct=correct, **fields)


def trajectory(id_, run, *correct, first=None, second="", **fields):
    """A question answered twice; without a second answer for `None`."""
    defaults = {"category": "dots", "question": "How many dots?", "answer": "4"}
    defaults["images"] = [Image.new("RGB", (8, 8), "red")]
    turns = [turn(correct[0], first or f"first answer of {id_} {run}", label="First answer"), None]
    if second is not None:
        turns[1] = turn(correct[1], second or f"second answer of {id_} {run}", label="Second answer")
    return Trajectory(id=id_, run=run, turns=turns, **(defaults | fields))


ATTACK = {"category": QUOTE, "question": SCRIPT, "answer": BREAKOUT}
TRAJECTORIES = [
    trajectory("q1", "before", False, False),
    trajectory("q1", "after", False, True, problem="missing <reflection>"),
    trajectory("q2", "before", True, False, images=[], first="half a pair \ud800"),
    trajectory("q2", "after", True, True, images=[]),
    trajectory(f"q3{QUOTE}", "before", False, False, **ATTACK, first=SCRIPT, second=None),
    trajectory(f"q3{QUOTE}", "after", False, True, **ATTACK, first=BREAKOUT, second=SCRIPT),
]


BEFORE, AFTER = (
    summarise(samples(*([sample(first, second)] for first in (False, True, False)))) for second in (False, True)
)
COMPARISON = results_table({"before": BEFORE, "after": AFTER})


@pytest.fixture
def report(tmp_path):
    write_report(
        tmp_path / "report.html",
        title="A run",
        command=f"python train.py {SCRIPT}",
        settings={"seed": 7, "prompt": SCRIPT},
        tables=[COMPARISON],
        trajectories=TRAJECTORIES,
        plots=training_plots({"": [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.4}]}),
    )
    return tmp_path / "report.html"


def page_with(folder, trajectories, **content):
    """A report with these trajectories and nothing else unless it is given."""
    given = {"title": "A run", "command": "", "settings": {}, "tables": []} | content
    write_report(folder / "page.html", trajectories=trajectories, **given)
    return folder / "page.html"


def shown(id_, *turns, **fields):
    """A trajectory as other methods have them: any number of turns."""
    given = {"category": "", "question": "How many?", "answer": "", "images": []} | fields
    return Trajectory(id=id_, turns=turns, **given)


def test_transition_names_both_verdicts():
    assert [entry.transition for entry in TRAJECTORIES[:4]] == [
        "wrong→wrong",
        "wrong→right",
        "right→wrong",
        "right→right",
    ]


def test_report_shows_metrics_settings_and_turns(report):
    page = page_of(report)
    rows = [row["text"].split() for row in page.with_tag("tr")]
    # acc@t2 goes from 0 of 3 to 3 of 3, whatever is drawn
    assert ["acc@t2", "0.0", "[0.0,", "0.0]", "100.0", "[100.0,", "100.0]", "+100.0", "[+100.0,", "+100.0]"] in rows
    assert [name["text"] for name in page.with_tag("dt")] == ["seed", "prompt"]
    assert [value["text"] for value in page.with_tag("dd")] == ["7", SCRIPT]
    first_question = page.with_class("question")[0]["text"]
    assert "How many dots?" in first_question
    assert "Gold answer: 4" in first_question
    verdicts = ["First answer ✗ wrong", "Second answer ✗ wrong", "First answer ✗ wrong", "Second answer ✓ right"]
    assert page.texts("verdict")[:4] == verdicts
    texts = [text["text"] for text in page.with_class("answer-text")]
    assert texts[:2] == ["first answer of q1 before", "second answer of q1 before"]
    assert texts[4] == "half a pair ?"  # UTF-8 cannot hold half a surrogate pair
    assert page.with_class("trajectory")[4]["text"].count("There is no second answer.") == 1


def test_report_says_what_is_wrong_with_the_form(report):
    texts = [element["text"] for element in page_of(report).with_class("trajectory")]
    assert ["Form: " in text for text in texts] == [False, True, False, False, False, False]
    assert "Form: missing <reflection>" in texts[1]


def test_report_holds_each_image_once_and_no_address(report):
    page = page_of(report)
    sources = [element["attrs"]["src"] for element in page.with_tag("img")]
    assert len(sources) == 2  # one for q1 and q3 each, not one a run; q2 has none
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert all(element["attrs"].get("href", "#").startswith("#") for element in page.elements)
    html = report.read_text(encoding="utf-8").replace("/*! https://github.com/leeoniya/uPlot", "")  # a comment
    assert "Copyright (c) 2022 Leon Sorokin" in html
    assert not any(mark in html for mark in ("http://", "https://", "url(", "@import"))


def test_report_escapes_what_others_wrote(report):
    page = page_of(report)
    scripts = page.with_tag("script")
    assert len(scripts) == 2  # uPlot and ours
    assert not any(SCRIPT.removeprefix("<script>").removesuffix("</script>") in each["text"] for each in scripts)
    names = {name for element in page.elements for name in element["attrs"]}
    assert not [name for name in names if name.startswith("on") or name == "autofocus"]
    assert [text["text"] for text in page.with_class("answer-text")[-3:]] == [SCRIPT, BREAKOUT, SCRIPT]
    assert page.with_class("question")[2]["attrs"]["data-category"] == QUOTE


@pytest.mark.parametrize("mode", ["RGB", "CMYK", "P"])
def test_report_shrinks_large_images_of_every_mode(tmp_path, mode):
    large = Image.new(mode, (1536, 384))
    page = page_with(tmp_path, [trajectory("q", "before", True, True, images=[large])])
    source = page_of(page).with_tag("img")[0]["attrs"]["src"]
    with Image.open(io.BytesIO(base64.b64decode(source.removeprefix("data:image/png;base64,")))) as image:
        assert image.size == (768, 192)
    assert large.size == (1536, 384)  # the caller's image is as it was


def test_photographs_are_stored_as_jpeg_and_drawings_as_they_are(tmp_path):
    noise = Image.effect_noise((600, 600), 40)  # 360,000 pixels that no lossless format makes small
    photograph = noise.resize((700, 700)).convert("RGB")
    drawing = Image.new("RGB", (700, 700), "blue")
    images = [photograph, drawing, Image.merge("RGBA", [*photograph.split(), noise.resize((700, 700))])]
    page = page_of(page_with(tmp_path, [shown("q", turn(True), images=images)]))
    sources = [element["attrs"]["src"] for element in page.with_tag("img")]
    assert [source.partition(";")[0] for source in sources] == ["data:image/jpeg", "data:image/png", "data:image/jpeg"]
    assert len(sources[0]) < len(photograph.tobytes()) / 2
    with Image.open(io.BytesIO(base64.b64decode(sources[1].partition(",")[2]))) as image:
        assert image.tobytes() == drawing.tobytes()


def test_one_id_for_two_questions_is_refused(tmp_path):
    with pytest.raises(ValueError, match="id 'q' differ in answer: '4' and '5'"):
        page_with(tmp_path, [trajectory("q", "before", True, True), trajectory("q", "after", True, True, answer="5")])


@pytest.mark.full
@needs_browser
@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ("", [("q1", "before"), ("q1", "after"), ("q2", "before"), ("q2", "after"), ("q3", "before"), ("q3", "after")]),
        ("#type=wrong→right&category=dots", [("q1", "after")]),
        *(
            pytest.param(*case, marks=pytest.mark.full)
            for case in [
                ("#type=wrong→right", [("q1", "after"), ("q3", "after")]),
                ("#run=before&text=SECOND+answer", [("q1", "before"), ("q2", "before")]),
                ("#text=how+many", [("q1", "before"), ("q1", "after"), ("q2", "before"), ("q2", "after")]),
                ("#type=right→wrong&run=after", []),
            ]
        ),
    ],
)
def test_browser_filters_by_address_and_runs_no_foreign_script(report, tmp_path, filters, expected):
    page = Page(dump_dom(report.as_uri() + filters, tmp_path))
    assert "data-attacked" not in page.with_tag("html")[0]["attrs"]
    shown = [
        (enclosing(element, "question")["text"].split()[0].removesuffix('"'), element["attrs"]["data-run"])
        for element in page.with_class("trajectory")
        if not is_hidden(element)
    ]
    assert shown == expected
    assert page.with_tag("output")[0]["text"] == f"{len(expected)} of 6 trajectories"
    assert len([card for card in page.with_class("question") if not is_hidden(card)]) == len({id_ for id_, _ in shown})


def test_transition_of_any_number_of_turns():
    right, wrong, ungraded = turn(True), turn(False), turn(None)
    transitions = [shown("q", *turns).transition for turns in ([right], [wrong], [ungraded], [])]
    assert transitions == ["right", "wrong", "not graded", "not graded"]
    assert shown("q", right, None).transition == "right→wrong"  # a turn that was never given is wrong
    assert shown("q", wrong, ungraded).transition == "not graded"
    assert shown("q", wrong, wrong, right).transition == "wrong→wrong→right"


def test_a_text_is_cut_behind_its_steps():
    assert scored_pieces("one two, three", [3, 7], [0.5, 1.0], 0.25) == [("one", 0.5), (" two", 1.0), (", three", 0.25)]
    assert scored_pieces("one two", [3, 7], [0.5, 1.0]) == [("one", 0.5), (" two", 1.0)]  # nothing follows
    assert scored_pieces("one", [], []) == [("one", None)]
    with pytest.raises(ValueError, match="longer"):
        scored_pieces("one two", [3], [0.5, 1.0])


def test_sections_without_content_are_left_out(tmp_path):
    page = page_of(page_with(tmp_path, []))
    assert {element["tag"] for element in page.elements} == set("html head meta title style body main h1".split())


def test_tables_and_notes(tmp_path):
    rows = [TableRow("dots", [("12", ""), ("51.0", "[46.0, 55.8]")])]
    table = ReportTable("By kind", ["", "questions", "acc"], rows, "In percent.")
    page = page_of(
        page_with(tmp_path, [], tables=[table, ReportTable("Empty", ["", "x"], [])], notes=[f"1 failed {SCRIPT}"])
    )
    assert [heading["text"] for heading in page.with_tag("h2")] == ["By kind"]
    assert [cell["text"] for cell in page.with_tag("td")] == ["12", "51.0 [46.0, 55.8]"]
    assert [small["text"] for small in page.with_tag("small")] == ["[46.0, 55.8]"]
    assert page.texts("note") == ["In percent."]
    assert [note["text"] for note in page.with_tag("li")] == [f"1 failed {SCRIPT}"]


def test_chips_readings_and_turns_without_verdict(tmp_path):
    rewards = {"format_reward": 0.5, "advantage": -1.23456, "judge": None, "kl": math.nan}
    one = shown("q1", turn(None, label="Answer"), rewards=rewards)
    two = shown("q2", turn(True, answer=SCRIPT, reason="equal numbers"), turn(False, reason="no answer"), None)
    page = page_of(page_with(tmp_path, [one, two]))
    assert page.texts("chips") == ["format_reward 0.5 advantage -1.23 judge n/a kl n/a"]
    assert page.texts("verdict") == ["Answer – not graded", "✓ right", "✗ wrong"]
    assert page.texts("reading") == [f"Read: {SCRIPT} · equal numbers", "no answer"]
    classes = [element["attrs"]["class"] for element in page.with_class("turn")]
    assert classes == ["turn", "turn right", "turn wrong", "turn wrong"]
    assert page.texts("turn")[-1] == "There is no third answer."


def test_filters_offer_what_occurs_and_only_choices(tmp_path):
    page = page_of(page_with(tmp_path, [shown("q1", turn(True)), shown("q2", turn(None), category="dots")]))
    # one category and one run are nothing to choose between
    assert [select["attrs"]["name"] for select in page.with_tag("select")] == ["type", "sort"]
    orders = ["in order", "length, highest first", "length, lowest first"]
    assert [option["text"] for option in page.with_tag("option")] == ["all", "right", "not graded", *orders]


def test_where_the_first_run_has_no_verdict_nothing_is_better_or_worse(tmp_path):
    """The third run was compared with the second, in a filter that says "Compared with base"."""
    named = [("base", None), ("ours", True), ("theirs", False)]
    unread = [shown("q1", turn(correct), run=run) for run, correct in named]
    read = [shown("q2", turn(run != "theirs"), run=run) for run, _ in named]
    page = page_of(page_with(tmp_path, unread + read))
    assert [question["attrs"]["data-change"] for question in page.with_class("question")] == ["", "worse"]


def test_scored_pieces_carry_their_number(tmp_path):
    pieces = [Piece("<|step|>One."), Piece(BREAKOUT, 0.25), Piece("Three.", 1.0)]
    page = page_of(page_with(tmp_path, [shown("q", Turn(pieces=pieces, correct=True))]))
    steps = [(step["text"], step["attrs"]["data-score"], step["attrs"]["style"]) for step in page.with_class("step")]
    assert steps == [(BREAKOUT, "0.25", "--score: 25%"), ("Three.", "1.00", "--score: 100%")]
    assert [token["text"] for token in page.with_class("token")] == ["<|step|>"]
    assert page.with_class("answer-text")[0]["text"] == f"<|step|>One.{BREAKOUT}Three."


@pytest.mark.full
@needs_browser
def test_filters_that_are_left_out_do_not_filter(tmp_path):
    page = page_with(tmp_path, [shown("q1", turn(True)), shown("q2", turn(None)), shown("q3", turn(True))])
    for filters, expected in (("", 3), ("#type=right", 2), ("#type=not+graded&step=9", 1)):
        found = Page(dump_dom(page.as_uri() + filters, tmp_path))
        assert found.with_tag("output")[0]["text"] == f"{expected} of 3 trajectories"


@needs_browser
def test_browser_draws_images_and_scores(tmp_path):
    steps = [Piece("right", 1.0), Piece("unsure", 0.5), Piece("wrong", 0.0)]
    one = shown("q", Turn(pieces=steps, correct=None), images=[Image.new("RGB", (8, 8), (255, 0, 0))])
    page = page_with(tmp_path, [one])
    light, dark = (screenshot(page.as_uri(), tmp_path, dark=dark) for dark in (False, True))
    for seen in (light, dark):
        assert pixels_of(seen, (255, 0, 0)) == pytest.approx(176 * 176, rel=0.05)  # 11rem wide
    # the tints of right and wrong (--good-step, --bad-step), and half-way between them; each fills a line at least
    for colour in ((169, 205, 240), (208, 199, 198), (246, 193, 155)):
        assert pixels_of(light, colour) > 500 * 20
    for colour in ((31, 74, 120), (122, 67, 32)):
        assert pixels_of(dark, colour) > 500 * 20


@pytest.mark.full
@needs_browser
def test_browser_asks_nobody_for_anything(tmp_path):
    leak = "<img src='http://leak.test/image.png'><link rel='stylesheet' href='http://leak.test/style.css'>"
    page = page_with(tmp_path, [shown("q", turn(True, leak), question=leak, answer=leak)], title=leak)
    (tmp_path / "open.html").write_text(f"<!DOCTYPE html><html><body>{leak}</body></html>")
    with listening_proxy() as (proxy, asked):

        def asked_by(path):
            asked.clear()
            dump_dom(path.as_uri(), tmp_path, proxy)
            return {address for address in asked if "google" not in address}  # what Chromium wants for itself

        assert asked_by(page) == set()
        # the control: it would have been seen
        assert asked_by(tmp_path / "open.html") == {"http://leak.test/image.png", "http://leak.test/style.css"}


# ------------------------------------------------------------------------------------- pointed at, in a real browser

HISTORIES = {
    run: [{"step": step, "acc_t1": step / 100 + more, "acc_t2": 0.5, "loss": 0.1 * step} for step in range(1, 31)]
    for run, more in (("base", 0.0), (f"ours {SCRIPT}", 0.25))
}
GROUPS = [
    shown(
        f"q{place}",
        turn(k == 0, f"{BREAKOUT} {'long ' * 40}"),
        step=step,
        number=k + 1,
        question=SCRIPT,
        images=[Image.new("RGB", (300, 200), "red")],
        rewards={"accuracy_reward": float(k == 0), "advantage": place - k},
    )
    for place in range(12)
    for step in (5, 10)
    for k in range(3)
]
TABLE = ReportTable(
    "Comparison",
    ["", "base", "ours"],
    [
        TableRow(
            "accuracy",
            [("25.0", "[20.0, 30.0]"), ("50.0", "[45.0, 55.0]")],
            [Mark(0.25, 0.2, 0.3), Mark(0.5, 0.45, 0.55)],
        )
    ],
    marked=["base", "ours"],
)

# The contrast of every text with what is behind it, as WCAG 2 defines it; the image of a plot is left out.
LOW_CONTRAST = """(() => {
  const channels = (colour) => (colour.match(/[\\d.]+/g) ?? []).map(Number);
  const luminance = (colour) => channels(colour).slice(0, 3).map((c) => c / 255)
    .map((c) => c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, k) => sum + c * [.2126, .7152, .0722][k], 0);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (colour.startsWith("rgb") && (channels(colour)[3] ?? 1) === 1) return colour;
    }
  };
  return [...document.querySelectorAll("main *")].filter((element) =>
    element.checkVisibility() && !element.disabled
    && [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
  ).map((element) => {
    const [a, b] = [luminance(getComputedStyle(element).color), luminance(behind(element))];
    return [element.className || element.tagName, (Math.max(a, b) + .05) / (Math.min(a, b) + .05)];
  }).filter(([, ratio]) => ratio < 4.5);
})()"""
VISIBLE = "document.querySelectorAll('.trajectory:not([hidden])').length"
ORDER = """[...document.querySelectorAll('.question:not([hidden])')]
  .map((card) => card.querySelector('.about').textContent.trim().split(' ')[0])"""


@pytest.fixture(scope="module")
def whole_page(tmp_path_factory):
    plots = training_plots(HISTORIES)
    return page_with(tmp_path_factory.mktemp("page"), GROUPS, plots=plots, tables=[TABLE], title=f"A run {SCRIPT}")


@needs_browser
@pytest.mark.parametrize("dark", full_but(False, [False, True]))
@pytest.mark.parametrize("width", full_but(1280, [400, 1280]))
def test_it_can_be_read_in_every_width_and_scheme(whole_page, tmp_path, width, dark):
    with Tab(whole_page.as_uri(), tmp_path, dark=dark, size=(width, 800)) as tab:
        assert tab.ask("document.documentElement.scrollWidth") == width
        assert tab.ask(LOW_CONTRAST) == []
        assert (sum(tab.screenshot().getpixel((2, 2))) < 3 * 64) == dark
        assert tab.ask("document.documentElement.dataset.attacked ?? ''") == ""
        assert (tab.errors, tab.requests) == ([], [])


COMMAND = "mmreason train adapo --vllm_importance_sampling_mode token_mask --cold_start_accuracy 0.25"
CUT = """((box) => [...box.querySelectorAll('th, td')]
  .filter((cell) => cell.getBoundingClientRect().right > box.getBoundingClientRect().right + 1)
  .map((cell) => cell.textContent))(document.querySelector('.scroll'))"""


@needs_browser
def test_on_a_telephone_the_change_is_seen_and_no_option_is_broken(tmp_path):
    wide = [("100.0", "[100.0, 100.0]"), ("100.0", "[100.0, 100.0]"), ("-100.0", "[-100.0, -100.0]")]
    row = TableRow("misjudgment, of first right", wide, [Mark(1, 1, 1), Mark(1, 1, 1)])
    table = ReportTable("Comparison", ["", "before", "after", "change"], [row], marked=["before", "after"])
    page = page_with(tmp_path, GROUPS, tables=[table], command=COMMAND)
    with Tab(page.as_uri(), tmp_path, size=(390, 844)) as tab:
        assert tab.ask(CUT) == []
        assert tab.ask("document.querySelector('th:nth-child(4)').getBoundingClientRect().width") > 40
        words = "[...document.querySelectorAll('code span')].map((word) => word.getClientRects().length)"
        assert tab.ask(words) == [1] * len(COMMAND.split())
        lines = tab.ask("document.querySelector('code').innerText").split()
        assert lines == COMMAND.split()  # and is copied as it was


@pytest.mark.full
@needs_browser
def test_a_curve_is_pointed_at_zoomed_and_hidden(whole_page, tmp_path):
    with Tab(whole_page.as_uri(), tmp_path) as tab:
        rows = "[...document.querySelector('.plot').querySelectorAll('.u-series:not(.companion)')]"
        legend = f"{rows}.map((row) => row.innerText.replace(/\\s+/g, ' '))"
        assert tab.ask(legend)[0] == "training step 30"  # without a cursor, the end
        tab.point_at(".u-over", 0.0)
        # the first step of each run: 1 / 100, and 1 / 100 + 0.25; there is nothing to take a mean of
        assert tab.ask(legend)[:2] == ["training step 1", "base, first turn 1.0 %"]
        assert tab.ask(legend)[3] == f"ours {SCRIPT}, first turn 26.0 %"
        chart = "charts.get(document.querySelector('.plot'))"
        assert tab.ask(f"[{chart}.scales.x.min, {chart}.scales.x.max]") == [1, 30]
        tab.drag(".u-over", 0.25, 0.75)
        low, high = tab.ask(f"[{chart}.scales.x.min, {chart}.scales.x.max]")
        assert (low, high) == pytest.approx((1 + 29 / 4, 1 + 29 * 3 / 4), abs=0.5)
        others = tab.ask("[...charts.values()].map((each) => each.scales.x.min)")
        assert others == pytest.approx([low] * 2, abs=0.1)  # all are zoomed
        tab.point_at(".u-series:nth-child(2) th", click=True)
        assert tab.ask(f"{chart}.series.slice(0, 4).map((each) => each.show)") == [True, False, False, True]
        tab.set_dark(True)
        assert tab.ask(f"{chart}.series[1].stroke()") == "#56b4e9"
        assert tab.errors == []


@needs_browser
def test_filters_sorting_pages_and_links(whole_page, tmp_path):
    with Tab(whole_page.as_uri(), tmp_path) as tab:
        hidden = "document.querySelectorAll('.question[hidden]').length"
        output = "document.querySelector('output').textContent"
        assert tab.ask(f"[{output}, {hidden}]") == ["72 of 72 trajectories", 14]  # 24 groups, of which 10 are a page
        event = "new Event('input', {{bubbles: true}})"
        choose = (
            f"((one) => {{{{ one.value = '{{}}'; one.dispatchEvent({event}); }}}})(document.forms[0].elements.{{}})"
        )
        tab.ask(choose.format("wrong", "type"))
        assert tab.ask(f"[{output}, {VISIBLE}]") == ["48 of 72 trajectories", 72 - 24]
        tab.ask(choose.format("10", "step"))
        assert tab.ask(output) == "24 of 72 trajectories"
        # the wrong ones are the second and the third, whose advantages are place - 1 and place - 2
        tab.ask(choose.format("advantage down", "sort"))
        assert tab.ask(ORDER) == [f"q{place}" for place in range(11, 1, -1)]
        tab.point_at(".turner button:last-of-type", click=True)
        assert tab.ask(ORDER) == ["q1", "q0"]
        assert "page=2" in tab.ask("location.hash")
        tab.ask("location.hash = document.querySelectorAll('.trajectory')[50].querySelector('a').hash")
        linked = "[...document.querySelectorAll('.linked')].filter((one) => one.checkVisibility())"
        linked += ".map((one) => one.dataset.key)"
        (key,) = tab.ask(linked)
        assert tab.ask(f"[{output}, document.querySelector('.linked').getBoundingClientRect().top < innerHeight]") == [
            "72 of 72 trajectories",
            True,
        ]
    with Tab(f"{whole_page.as_uri()}#trajectory={quote(key, safe='')}", tmp_path) as tab:
        assert tab.ask(linked) == [key]


def test_a_group_shows_its_rewards_and_advantages(whole_page):
    page = page_of(whole_page)
    table = page.with_class("group")[0]
    cells = [cell["text"] for cell in page.with_tag("td") if cell["parent"]["parent"]["parent"] is table]
    # three completions of question 0: verdict, reward, advantage, and a bar without text
    assert cells == ["right", "1", "0", "", "wrong", "0", "-1", "", "wrong", "0", "-2", ""]
    shares = [bar["attrs"]["style"] for bar in page.with_tag("i") if "share" in bar["attrs"].get("style", "")]
    assert shares[:3] == ["--share: 0.000", "--share: 0.500", "--share: 1.000"]  # of the largest


@needs_browser
def test_runs_are_compared_question_by_question(tmp_path):
    pairs = [trajectory("q1", "base", False, False), trajectory("q1", "ours", False, True)]
    pairs += [trajectory("q2", "base", True, True), trajectory("q2", "ours", True, False)]
    pairs += [trajectory("q3", "base", True, True), trajectory("q3", "ours", True, True)]
    page = page_with(tmp_path, pairs)
    for address, expected in (
        ("change=better", "2"),
        ("change=worse", "2"),
        ("change=better+or+worse", "4"),
        ("type=changed", "2"),
    ):
        assert (
            Page(dump_dom(f"{page.as_uri()}#{address}", tmp_path)).with_tag("output")[0]["text"]
            == f"{expected} of 6 trajectories"
        )


def test_a_plot_has_a_number_or_null_for_every_x():
    plot = Plot("t", "x", "y", [Line("a", {1: 0.123456, 3: math.nan}, low={1: 0.1}), Line("b", {2: 1.0}, colour=1)])
    found = plot.as_json()
    assert found["xs"] == [1, 2, 3]
    assert [line["points"] for line in found["lines"]] == [[0.12346, None, None], [None, 1.0, None]]
    assert (found["lines"][0]["low"], "low" in found["lines"][1]) == ([0.1, None, None], False)
