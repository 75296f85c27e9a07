"""What a store is tied to beside the ids of its rows: the words of the questions, and who grades. In every pipeline."""

import hashlib
from dataclasses import asdict
from functools import partial

import pytest
from datasets import Dataset, Features, Json, List, Value
from PIL import Image as Images
from scripted import Scripted
from support import png

from trl_mmreason.adapo.prefilter import prefilter
from trl_mmreason.baselines.star import make_revisions
from trl_mmreason.chain_of_step.data import annotate_by_judge, annotate_by_monte_carlo, make_step_data
from trl_mmreason.chain_of_step.protocols import sample_paths, search_answers
from trl_mmreason.chain_of_step.template import Chain, Step, render_chain
from trl_mmreason.generation import SamplingParams
from trl_mmreason.grading import Grader
from trl_mmreason.jobs.difficulty import difficulty_filter
from trl_mmreason.jobs.questions import remember_questions
from trl_mmreason.jobs.store import Record, SettingsChanged, Store
from trl_mmreason.sophia.sampling import OffPolicySampling, make_off_policy_data
from trl_mmreason.srpo.cold_start import make_reflections

STAGE = "answers"
CHAIN = render_chain(Chain([Step("Count", "There are seven.", "Yes.")], "7"))


def row(id_="cats", **given):
    return {"id": id_, "prompt": [{"role": "user", "content": f"How many {id_}?"}], "answer": "7", **given}


def remember(path, rows, *asked, answered=True):
    with Store(path) as store:
        remember_questions(store, STAGE, rows if isinstance(rows, Dataset) else Dataset.from_list(rows), *asked)
        store.open_stage(STAGE, {})
        if answered:
            store.save(STAGE, [Record("any", 0, "done", {})])


# ------------------------------------------------------------------------------------------------------------ questions


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (row(answer="8"), "  answer of 'cats'\n"),
        (row(prompt=[{"role": "user", "content": "How many dogs?"}]), "  prompt of 'cats'\n"),
        (row(choices={"A": "7"}), "  choices of 'cats'\n"),
        (row(prompt="How many cats?", answer=["7", "seven"]), "  prompt and answer of 'cats'\n"),
    ],
)
def test_another_question_under_an_id_is_refused(tmp_path, now, said):
    remember(tmp_path / "s.sqlite", [row()])
    with pytest.raises(SettingsChanged, match="1 rows of stage 'answers' changed under the same id") as refusal:
        remember(tmp_path / "s.sqlite", [now, row("new", prompt=now["prompt"], answer=now["answer"])])
    assert said in str(refusal.value)
    remember(tmp_path / "s.sqlite", [row("new", answer="9")])  # nothing was kept of what was refused


def test_questions_that_nobody_answered_may_change(tmp_path):
    path, changed = tmp_path / "s.sqlite", row(answer="8")
    remember(path, [row(), row("dogs")], answered=False)
    remember(path, [changed])
    with pytest.raises(SettingsChanged, match="1 rows of stage 'answers' changed"):
        remember(path, [row(), row("dogs")])
    remember(path, [changed, row("dogs")])


def test_rows_may_be_added_whatever_columns_and_keys_that_gives_the_others(tmp_path):
    """A row with choices, several answers and further keys of messages: Arrow gives all rows these, with None."""
    path = tmp_path / "s.sqlite"
    remember(path, [row(choices={"A": "7"}), row("dogs", choices=None)])
    more = {"role": "user", "content": "How many?", "name": "Ann"}
    others = [row(choices={"A": "7"}, answer=["7"]), row("dogs", answer=["7"], choices=None)]
    grown = Dataset.from_list([row("owls", prompt=[more], choices={"B": "8"}, answer=["8", "eight"]), *others])
    assert grown[1]["choices"] == {"B": None, "A": "7"}
    assert grown[1]["prompt"][0]["name"] is None
    remember(path, grown)
    remember(path, grown.select([1]))
    message = {"role": Value("string"), "content": Value("string")}
    kinds = {"id": Value("string"), "prompt": List(message), "answer": Value("string"), "choices": Json()}
    remember(path, Dataset.from_list([row(choices={"A": "7"})], features=Features(kinds)))


def test_only_what_is_asked_of_a_prompt_counts(tmp_path):
    system = {"role": "system", "content": "Be brief."}
    remember(tmp_path / "s.sqlite", [row()], lambda prompt: prompt[-1]["content"])
    with_system = row(prompt=[system, *row()["prompt"]])
    remember(tmp_path / "s.sqlite", [with_system], lambda prompt: prompt[-1]["content"])
    with pytest.raises(SettingsChanged, match="  prompt of 'cats'"):
        remember(tmp_path / "s.sqlite", [with_system])


def test_many_changes_are_listed_in_part(tmp_path):
    ids = [hashlib.sha256(bytes([number])).hexdigest()[:4] for number in range(7)]
    remember(tmp_path / "s.sqlite", [row(id_) for id_ in ids])
    with pytest.raises(SettingsChanged, match="7 rows of stage") as refusal:
        remember(tmp_path / "s.sqlite", [row(id_, answer="8") for id_ in ids])
    assert str(refusal.value).splitlines()[1:-1] == [*(f"  answer of {id_!r}" for id_ in ids[:5]), "  …"]


def in_each_form(folder, colour):
    """An image of this colour as data sets store it, and as the path of one file, with an ending or without."""
    for name in ("picture.png", "picture"):
        (folder / name).write_bytes(png(colour))
    paths = {"path": str(folder / "picture.png"), "path without a dot": str(folder / "picture")}
    paths["record"] = {"bytes": None, "path": paths["path without a dot"]}  # as `load_rows` stores it
    return {"PIL": Images.new("RGB", (2, 2), colour), "bytes": png(colour), **paths}


@pytest.mark.parametrize("form", ["PIL", "bytes", "path", "path without a dot", "record"])
def test_another_image_under_an_id_is_refused(tmp_path, form):
    """Of a path the file is read: another file under the same path, of the same size, is another image."""
    path = tmp_path / "s.sqlite"

    def with_images(colour, column="images"):
        image = in_each_form(tmp_path, colour)[form]
        return Dataset.from_list([row(**{column: image if column == "image" else [image]})])

    remember(path, with_images("red"))
    remember(path, with_images("red"))
    remember(path, with_images("red", "image"))
    for other in (with_images("blue"), Dataset.from_list([row(images=None)]), [row()]):
        with pytest.raises(SettingsChanged, match="1 rows of stage") as refusal:
            remember(path, other)
        assert "  images of 'cats'\n" in str(refusal.value)
    if form == "path":
        remember(path, with_images("red"))
        (tmp_path / "picture.png").unlink()
        with pytest.raises(FileNotFoundError, match="picture.png' does not exist here"):
            remember(path, Dataset.from_list([row(images=[str(tmp_path / "picture.png")])]))


# ------------------------------------------------------------------------------------------------------------ pipelines


class Scorer:
    """Of no account here."""

    settings = {"kind": "scorer"}

    def score(self, rows):
        raise AssertionError("there is nothing to score")


def engine():
    return Scripted(lambda request, times: ["no chain"] * request.n)


def reflect(rows, engine, store, grader):
    make_reflections(rows, engine, engine, store, grader=grader)


def search(rows, engine, store, grader):
    search_answers(rows, engine, Scorer(), store, n=1, stage=STAGE, grader=grader)


def annotate(rows, engine, store, grader):
    chains = rows.add_column("completion", [CHAIN] * len(rows)).add_column("correct", [True] * len(rows))
    annotate_by_monte_carlo(chains, engine, store, n=1, grader=grader)


PIPELINES = {
    "annotate_by_monte_carlo": annotate,
    "difficulty_filter": partial(difficulty_filter, low=0, high=1, n=1),
    "prefilter": partial(prefilter, n=1),
    "make_revisions": partial(make_revisions, followup="Check it."),
    "make_reflections": reflect,
    "sample_paths": partial(sample_paths, stage=STAGE, n=1),
    "search_answers": search,
}


def judge(rows, engine, store, grader):
    chains = rows.add_column("completion", [CHAIN] * len(rows)).add_column("correct", [True] * len(rows))
    annotate_by_judge(chains, engine, store)


def describe(rows, engine, store, grader):
    make_off_policy_data(rows, engine, engine, store, OffPolicySampling(captions=1, trajectories=1), grader=grader)


ASKED = {"make_step_data": make_step_data, "annotate_by_judge": judge, "make_off_policy_data": describe}


class Own(Grader):
    """A grader of one's own, whose repr is Python's: it holds its address."""

    __repr__ = object.__repr__


def verdicts(store):
    return [stage for stage in store.stages() if "verdicts-" in stage and not stage.endswith("-questions")]


@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES)
def test_another_grader_grades_anew_and_asks_nobody_and_other_questions_are_refused(tmp_path, pipeline):
    rows, asked = Dataset.from_list([row()]), engine()
    with Store(tmp_path / "s.sqlite") as store:
        pipeline(rows, asked, store, grader=Own())
        first = len(asked.asked)
        assert first
        pipeline(rows, asked, store, grader=Own())
        assert len(verdicts(store)) == 1  # two of one class without settings are one grader
        pipeline(rows, asked, store, grader=Grader())
        assert len(verdicts(store)) == 2
        assert len(asked.asked) == first
        with pytest.raises(SettingsChanged, match="  answer of 'cats"):
            pipeline(Dataset.from_list([row(answer="8")]), asked, store, grader=Own())
        assert len(asked.asked) == first


@pytest.mark.parametrize("pipeline", {**PIPELINES, **ASKED}.values(), ids=[*PIPELINES, *ASKED])
def test_other_images_are_refused(tmp_path, pipeline):
    with Store(tmp_path / "s.sqlite") as store:
        for colour in ("red", "red", "blue"):
            asked, with_images = engine(), Dataset.from_list([row(images=[Images.new("RGB", (8, 8), colour)])])
            if colour == "blue":
                with pytest.raises(SettingsChanged, match="  images of 'cats"):
                    pipeline(with_images, asked, store, grader=Own())
            else:
                pipeline(with_images, asked, store, grader=Own())
        assert not asked.asked


def test_another_grader_is_refused_where_answers_are_kept_with_their_verdicts(tmp_path):
    rows, graders = Dataset.from_list([row()]), [Own(), Own()]
    assert repr(graders[0]) != repr(graders[1])
    with Store(tmp_path / "s.sqlite") as store:
        for grader in graders:
            make_step_data(rows, engine(), store, attempts=1, grader=grader)
        with pytest.raises(SettingsChanged, match=f"grader: '<{__name__}.Own object>' → \"Grader"):
            make_step_data(rows, engine(), store, attempts=1, grader=Grader())
        changed = Dataset.from_list([row(answer="8")])
        with pytest.raises(SettingsChanged, match="  answer of 'cats'"):
            make_step_data(changed, engine(), store, attempts=1, grader=graders[0])


def test_a_store_of_an_older_version_is_refused(tmp_path):
    """Answers used to be kept with their verdicts, and the stage did not name a protocol."""
    rows = Dataset.from_list([row()])
    with Store(tmp_path / "s.sqlite") as store:
        older = {
            "engine": engine().settings,
            "sampling_params": asdict(SamplingParams()),
            "seed": 0,
            "grader": "Grader()",
        }
        store.open_stage("difficulty", older)
        store.save("difficulty", [Record("cats", 0, "done", {})])
        with pytest.raises(SettingsChanged, match=r"stage 'difficulty'[\s\S]*protocol: \(absent\) → ") as refusal:
            difficulty_filter(rows, engine(), store, low=0, high=1)
        assert "another file" in str(refusal.value)
