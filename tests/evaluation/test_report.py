import base64
import io
import math
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from PIL import Image

from trl_mmreason.evaluation.curves import draw_curves, plot_curves, running_mean
from trl_mmreason.evaluation.metrics import compare
from trl_mmreason.evaluation.report import TwoTurnTrajectory, write_report

SCRIPT = "<script>document.documentElement.dataset.attacked = 'yes'</script>"
BREAKOUT = "</div></script><img src=x onerror=\"document.documentElement.dataset.attacked = 'yes'\">"
QUOTE = "\" autofocus onfocus=\"document.documentElement.dataset.attacked = 'yes'"
VOID_TAGS = {"meta", "img", "input"}
BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


class Page(HTMLParser):
    """Elements of a page with their parents; raises at a tag that closes another one than the open one."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        element = {
            "tag": tag,
            "attrs": dict(attrs),
            "text": "",
            "parent": self.open[-1] if self.open else None,
        }
        self.elements.append(element)
        if tag not in VOID_TAGS:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def with_class(self, name):
        return [element for element in self.elements if name in element["attrs"].get("class", "").split()]

    def with_tag(self, tag):
        return [element for element in self.elements if element["tag"] == tag]


def trajectory(id_, stage, first_correct, second_correct, **fields):
    defaults = {
        "category": "dots",
        "question": "How many dots?",
        "answer": "4",
        "images": [Image.new("RGB", (8, 8), "red")],
        "first": f"first answer of {id_} {stage}",
        "second": f"second answer of {id_} {stage}",
    }
    return TwoTurnTrajectory(
        id=id_, stage=stage, first_correct=first_correct, second_correct=second_correct, **(defaults | fields)
    )


TRAJECTORIES = [
    trajectory("q1", "before", False, False),
    trajectory("q1", "after", False, True, problem="missing <reflection>"),
    trajectory("q2", "before", True, False, images=[], first="half a pair \ud800"),
    trajectory("q2", "after", True, True, images=[]),
    trajectory(
        f"q3{QUOTE}",
        "before",
        False,
        False,
        category=QUOTE,
        question=SCRIPT,
        answer=BREAKOUT,
        first=SCRIPT,
        second=None,
    ),
    trajectory(
        f"q3{QUOTE}",
        "after",
        False,
        True,
        category=QUOTE,
        question=SCRIPT,
        answer=BREAKOUT,
        first=BREAKOUT,
        second=SCRIPT,
    ),
]


@pytest.fixture
def report(tmp_path):
    plot_curves([{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.4}], tmp_path / "curves.png")
    write_report(
        tmp_path / "report.html",
        title="A run",
        command=f"python train.py {SCRIPT}",
        settings={"seed": 7, "prompt": SCRIPT},
        comparison=compare(([False, True, False], [False, False, False]), ([False, True, False], [True, True, True])),
        trajectories=TRAJECTORIES,
        curves_png=tmp_path / "curves.png",
    )
    return tmp_path / "report.html"


def test_running_mean_is_trailing_and_leaves_nan_out():
    assert running_mean([1.0, 3.0, math.nan, 5.0, 7.0], window=2) == [1.0, 2.0, 3.0, 5.0, 6.0]
    assert math.isnan(running_mean([math.nan, 1.0], window=2)[0])


def test_panels_follow_the_data():
    history = [
        {"step": 1, "acc_t1": 0.5, "acc_t2": 0.25, "loss": 1.0, "correction_rate": math.nan},
        {"step": 2, "eval_reward": 9.0},
        {"step": 3, "acc_t1": 1.0, "acc_t2": math.nan, "loss": 3.0, "correction_rate": math.nan},
        {"step": 3, "train_loss": 2.0},
    ]
    axes = draw_curves(history).axes
    assert [panel.get_title() for panel in axes] == ["Accuracy", "Loss"]  # transitions hold NaN alone
    assert [panel.get_ylabel() for panel in axes] == ["share right", "loss"]
    assert {panel.get_xlabel() for panel in axes} == {"training step"}
    raw, mean = axes[1].lines
    assert raw.get_xydata().tolist() == [[1.0, 1.0], [3.0, 3.0]]
    assert mean.get_linewidth() > raw.get_linewidth()
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == ["first turn", "second turn"]


def test_bold_line_is_the_mean_over_a_tenth_of_the_run():
    history = [{"step": step, "reward": float(step)} for step in range(1, 21)]  # 20 values: a window of 2
    _, mean = draw_curves(history).axes[0].lines
    assert mean.get_ydata().tolist() == [1.0] + [step - 0.5 for step in range(2, 21)]


def test_picture_grows_with_its_panels(tmp_path):
    # a panel is 4.2 x 2.9 inches at 120 dots an inch, and the caption takes 0.3 inches below
    names = ["reward", "acc_t1", "correction_rate", "kl_t1"]
    for count, size in ((1, (504, 384)), (4, (1512, 732))):
        plot_curves([{"step": step, **dict.fromkeys(names[:count], 0.5)} for step in (1, 2)], tmp_path / "curves.png")
        with Image.open(tmp_path / "curves.png") as picture:
            assert (picture.format, picture.size) == ("PNG", size)


def test_curves_without_data_are_refused():
    with pytest.raises(ValueError, match="none of .*'acc_t1'.* is in the 1 logged entries"):
        draw_curves([{"step": 1, "train_runtime": 3.0}])


def test_transition_names_both_verdicts():
    assert [entry.transition for entry in TRAJECTORIES[:4]] == ["0→0", "0→1", "1→0", "1→1"]


def test_a_missing_second_answer_cannot_be_right():
    with pytest.raises(ValueError, match=r"'q' \(after\): second_correct is True but second is None"):
        trajectory("q", "after", True, True, second=None)


def test_report_shows_metrics_settings_and_turns(report):
    page = Page(report.read_text(encoding="utf-8"))
    rows = [row["text"].split() for row in page.with_tag("tr")]
    # acc@t2 goes from 0 of 3 to 3 of 3, whatever is drawn
    assert [
        "acc@t2",
        "0.0",
        "[0.0,",
        "0.0]",
        "100.0",
        "[100.0,",
        "100.0]",
        "+100.0",
        "[+100.0,",
        "+100.0]",
    ] in rows
    assert [name["text"] for name in page.with_tag("dt")] == ["seed", "prompt"]
    assert [value["text"] for value in page.with_tag("dd")] == ["7", SCRIPT]
    first_question = page.with_class("question")[0]["text"]
    assert "How many dots?" in first_question
    assert "Gold answer: 4" in first_question
    assert [turn["text"].split() for turn in page.with_class("verdict")[:4]] == [
        ["First", "answer", "✗", "wrong"],
        ["Second", "answer", "✗", "wrong"],
        ["First", "answer", "✗", "wrong"],
        ["Second", "answer", "✓", "right"],
    ]
    assert [text["text"] for text in page.with_class("answer-text")[:2]] == [
        "first answer of q1 before",
        "second answer of q1 before",
    ]
    assert page.with_class("answer-text")[4]["text"] == "half a pair ?"  # UTF-8 cannot hold half a surrogate pair
    assert page.with_class("trajectory")[4]["text"].count("There is no second answer.") == 1


def test_report_says_what_is_wrong_with_the_form(report):
    texts = [element["text"] for element in Page(report.read_text(encoding="utf-8")).with_class("trajectory")]
    assert ["Form: " in text for text in texts] == [False, True, False, False, False, False]
    assert "Form: missing <reflection>" in texts[1]


def test_report_holds_each_picture_once_and_no_address(report):
    page = Page(report.read_text(encoding="utf-8"))
    sources = [element["attrs"]["src"] for element in page.with_tag("img")]
    assert len(sources) == 3  # the curves, and one for q1 and q3 each, not one a stage; q2 has none
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not any("href" in element["attrs"] for element in page.elements)
    html = report.read_text(encoding="utf-8")
    assert not any(mark in html for mark in ("http://", "https://", "url(", "@import"))


def test_report_escapes_what_others_wrote(report):
    page = Page(report.read_text(encoding="utf-8"))
    assert len(page.with_tag("script")) == 1  # the filters'
    assert SCRIPT.removeprefix("<script>").removesuffix("</script>") not in page.with_tag("script")[0]["text"]
    assert not any(
        name.startswith("on") or name == "autofocus" for element in page.elements for name in element["attrs"]
    )
    assert [text["text"] for text in page.with_class("answer-text")[-3:]] == [SCRIPT, BREAKOUT, SCRIPT]
    assert page.with_class("question")[2]["attrs"]["data-category"] == QUOTE


@pytest.mark.parametrize("mode", ["RGB", "CMYK", "P"])
def test_report_shrinks_large_pictures_of_every_mode(report, tmp_path, mode):
    large = Image.new(mode, (1536, 384))
    write_report(
        tmp_path / "large.html",
        title="A run",
        command="python train.py",
        settings={},
        comparison={},
        trajectories=[trajectory("q", "before", True, True, images=[large])],
        curves_png=tmp_path / "curves.png",
    )
    source = Page((tmp_path / "large.html").read_text(encoding="utf-8")).with_tag("img")[1]["attrs"]["src"]
    with Image.open(io.BytesIO(base64.b64decode(source.removeprefix("data:image/png;base64,")))) as picture:
        assert picture.size == (768, 192)
    assert large.size == (1536, 384)  # the caller's picture is as it was


def test_one_id_for_two_questions_is_refused(report, tmp_path):
    with pytest.raises(ValueError, match="id 'q' differ in answer: '4' and '5'"):
        write_report(
            tmp_path / "twice.html",
            title="A run",
            command="python train.py",
            settings={},
            comparison={},
            trajectories=[
                trajectory("q", "before", True, True),
                trajectory("q", "after", True, True, answer="5"),
            ],
            curves_png=tmp_path / "curves.png",
        )


needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="no Chromium on this machine; install one, such as Debian's package `chromium`"
)


@needs_browser
def test_the_attack_runs_where_nothing_is_escaped(tmp_path):
    """The control of the next test: the browser runs scripts, and the mark would be seen."""
    for attack in (SCRIPT, BREAKOUT):
        (tmp_path / "open.html").write_text(f"<!DOCTYPE html><html><body><div>{attack}</body></html>")
        assert 'data-attacked="yes"' in _dump_dom((tmp_path / "open.html").as_uri(), tmp_path)


@needs_browser
@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (
            "",
            [
                ("q1", "before"),
                ("q1", "after"),
                ("q2", "before"),
                ("q2", "after"),
                ("q3", "before"),
                ("q3", "after"),
            ],
        ),
        ("#type=0→1", [("q1", "after"), ("q3", "after")]),
        ("#type=0→1&category=dots", [("q1", "after")]),
        ("#stage=before&text=SECOND+answer", [("q1", "before"), ("q2", "before")]),
        ("#text=how+many", [("q1", "before"), ("q1", "after"), ("q2", "before"), ("q2", "after")]),
        ("#type=1→0&stage=after", []),
    ],
)
def test_browser_filters_by_address_and_runs_no_foreign_script(report, tmp_path, filters, expected):
    page = Page(_dump_dom(report.as_uri() + filters, tmp_path))
    assert "data-attacked" not in page.with_tag("html")[0]["attrs"]
    shown = [
        (_question_of(element)["text"].split()[0].removesuffix('"'), element["attrs"]["data-stage"])
        for element in page.with_class("trajectory")
        if not _is_hidden(element)
    ]
    assert shown == expected
    assert page.with_tag("output")[0]["text"] == f"{len(expected)} of 6 trajectories"
    assert len([card for card in page.with_class("question") if not _is_hidden(card)]) == len({id_ for id_, _ in shown})


def _dump_dom(address, folder):
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=2000", "--dump-dom", address]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    return done.stdout.decode("utf-8")


def _question_of(element):
    while "question" not in element["attrs"].get("class", "").split():
        element = element["parent"]
    return element


def _is_hidden(element):
    while element is not None:
        if "hidden" in element["attrs"]:
            return True
        element = element["parent"]
    return False
