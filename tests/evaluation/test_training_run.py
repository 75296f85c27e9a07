"""The report of a training run: of a real one, and of tables written by hand."""

import base64
import io
import json
import math
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from judged import trainer_for as self_evolution_trainer
from pages import page_of
from PIL import Image
from processes import outcomes
from support import adapo_trainer, drawn_rows, is_even

from trl_mmreason.evaluation.logged_completions import pieces_of, read_logged_completions, turns_of
from trl_mmreason.evaluation.training_run import (
    is_training_run,
    progress_table,
    read_state,
    write_training_report,
)
from trl_mmreason.training.logged_questions import (
    LoggedQuestionsMixin,
    about_question,
    gather_without_images,
    prompts_alike,
    read_questions,
    write_questions,
)

STEPS = 3
LOGGING = {"log_completions": True, "num_completions_to_print": 0}


@pytest.fixture(scope="module")
def rows():
    rows = drawn_rows(24)  # with one image, two and none, in turn
    for row in rows[1::6]:  # of two images
        row["prompt"] = [{"role": "user", "content": f"Of <image> the first: {row['prompt'][0]['content']} <image>"}]
    return rows


def number_of(id, **_):
    """A reward that tells which row a completion belongs to, such as 7 for adding-1-train-000007."""
    return [float(one.rpartition("-")[2]) for one in id]


@pytest.fixture(scope="module")
def run(checkpoints, rows, tmp_path_factory):
    """The output folder of AdaPO on random weights, two questions of four completions a step."""
    folder = tmp_path_factory.mktemp("adapo")
    settings = {"max_steps": STEPS, "trainer_kwargs": {"reward_funcs": number_of}, "filter_truncated": False, **LOGGING}
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), folder, rows, **settings)
    trainer.train()
    trainer.save_state()
    return folder


def test_questions_and_images_belong_to_their_completions(run, rows):
    known = {row["id"]: row for row in rows}
    found = read_logged_completions(run, 100)
    assert found.notes == []
    assert len(found.trajectories) == STEPS * 8
    for trajectory in found.trajectories:
        row = known[trajectory.id]
        assert trajectory.rewards["number_of"] == number_of([trajectory.id])[0]
        assert trajectory.question == row["prompt"][0]["content"]
        assert (trajectory.answer, trajectory.category) == (row["answer"], row["category"])
        assert [image.tobytes() for image in trajectory.images] == [image.tobytes() for image in row["images"]]
    # the sum of the digits, or a number of shapes: the questions' texts do not tell the images apart
    assert len({trajectory.question for trajectory in found.trajectories}) < len({one.id for one in found.trajectories})
    assert {len(trajectory.images) for trajectory in found.trajectories} == {0, 1, 2}


def test_turns_verdicts_and_numbers_are_those_of_training(run):
    table = [row for step in range(1, STEPS + 1) for row in lines_of(run, step)]
    for trajectory, line in zip(read_logged_completions(run, 100).trajectories, table, strict=True):
        answers = [message["content"] for message in line["completion"] if message["role"] == "assistant"]
        given = [turn for turn in trajectory.turns if turn is not None]
        assert [turn.pieces[0].text for turn in given] == answers
        # ParityGrader's verdicts, and a second answer that was never given is wrong
        verdicts = [is_even(text) for text in answers]
        assert [turn.correct for turn in given] == verdicts
        assert trajectory.transition == "→".join("right" if one else "wrong" for one in [*verdicts, False][:2])
        assert trajectory.step == line["step"]
        assert trajectory.rewards == {name: line[name] for name in ("adapo", "number_of", "advantage")}
    assert {len(line["completion"]) for line in table} == {1, 3}  # some first answers were cut


def lines_of(run, step):
    return pq.read_table(run / "completions" / f"completions_{step:05d}.parquet").to_pylist()


def test_report_of_a_real_run(run, rows, tmp_path):
    write_training_report({"adapo": run}, tmp_path / "page.html", shown=100)
    page = page_of(tmp_path / "page.html")
    headings = [heading["text"] for heading in page.with_tag("h2")]
    assert headings == ["Start and end of training", "Training curves", "Trajectories"]
    history = json.loads((run / "trainer_state.json").read_text())["log_history"]
    cells = [row["text"].split() for row in page.with_tag("tr")]
    first, last = (f"{100 * history[step]['acc_t1']:.1f}" for step in (0, STEPS - 1))  # three values: a tenth is one
    (accuracy,) = [row[:5] for row in cells if row[:2] == ["Accuracy:", "first"]]
    assert accuracy == ["Accuracy:", "first", "turn", first, last]
    names, values = ([element["text"] for element in page.with_tag(tag)] for tag in ("dt", "dd"))
    settings = dict(zip(names, values, strict=True))
    assert (settings["global_step"], settings["max_steps"]) == (str(STEPS), str(STEPS))
    shown = {card["attrs"]["data-category"] for card in page.with_class("question")}
    assert shown == {"adding", "counting"}
    known = {row["id"]: row["images"] for row in rows}
    for card in page.with_class("question"):
        own = [image for image in page.with_tag("img") if image["parent"]["parent"] is card]
        images = known[card["text"].split()[0]]
        assert [pixels(image) for image in own] == [image.tobytes() for image in images]
    types = {article["attrs"]["data-type"] for article in page.with_class("trajectory")}
    assert types == {one.transition for one in read_logged_completions(run, 100).trajectories}


def pixels(element):
    data = element["attrs"]["src"].removeprefix("data:image/png;base64,")
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        return image.tobytes()


def step_on_one_image(model, folder):
    """A step on a question with an image and one without, of which each process has one."""
    with_image, _, without = drawn_rows(3)
    settings = {"per_device_train_batch_size": 4, "shuffle_dataset": False, "max_steps": 1, **LOGGING}
    trainer = adapo_trainer(model, folder, [with_image, without], **settings)
    assert trainer.accelerator.num_processes == 2
    trainer.train()


@pytest.mark.full
def test_a_process_without_images_beside_one_with_some(checkpoints, tmp_path):
    """TRL would gather the images of one process only, and wait for the other for ever."""
    outcomes(step_on_one_image, 2, checkpoints("qwen2_5_vl"), tmp_path)
    trajectories = read_logged_completions(tmp_path, 8).trajectories
    assert [len(trajectory.images) for trajectory in trajectories] == [1] * 4 + [0] * 4
    first, _, third = drawn_rows(3)
    assert [trajectory.id for trajectory in trajectories] == [first["id"]] * 4 + [third["id"]] * 4


def test_labels_that_training_must_not_read_are_not_written(checkpoints, rows, tmp_path):
    settings = {"judge": False, "max_steps": 1, "per_device_train_batch_size": 4, **LOGGING}
    self_evolution_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, **settings).train()
    questions = read_questions(tmp_path, 1)
    assert {question.id for question in questions} <= {row["id"] for row in rows}
    assert [question.answer for question in questions] == [""] * 4


def test_links_inside_a_prompt_are_no_images_to_be_logged():
    """transformers fetches them; there are no pixels to write."""
    image, trainer = Image.new("RGB", (8, 8)), LoggedQuestionsMixin()
    trainer.args, trainer._logs, trainer._questions = SimpleNamespace(log_multimodal=True), {"images": []}, []
    parts = [{"type": "image", "image": shown} for shown in ("https://host/1.png", image)]
    trainer._keep_questions([{"prompt": [{"role": "user", "content": [*parts, {"type": "text", "text": "?"}]}]}])
    assert trainer._logs["images"] == [[image]]


def test_without_images_to_be_logged_there_are_none(checkpoints, rows, tmp_path):
    adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, max_steps=1, log_multimodal=False, **LOGGING).train()
    assert [path.name for path in (tmp_path / "_questions").iterdir()] == ["questions_00001.parquet"]
    assert all(one.id and not one.images for one in read_logged_completions(tmp_path, 8).trajectories)


# ------------------------------------------------------------------------------------------------- written by hand


def line(step, question, text="4", **columns):
    """A line of TRL's table."""
    return {
        "step": step,
        "prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": question}],
        "completion": [{"role": "assistant", "content": text}],
        "accuracy_reward": 1.0,
        **columns,
        "advantage": 0.5,
    }


def log(folder, step, lines, questions=None):
    (folder / "completions").mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(lines), folder / "completions" / f"completions_{step:05d}.parquet")
    if questions is not None:
        about = [{"question": "", "id": "", "category": "", "answer": "", **question} for question in questions]
        write_questions(folder, step, about, [])


def test_completions_of_trls_own_trainer(tmp_path):
    lines = [line(5, "1+3?"), line(5, "1+3?", "5", accuracy_reward=0.0), line(5, "2+2?", accuracy_reward=None)]
    log(tmp_path, 5, lines)
    found = read_logged_completions(tmp_path, 100)
    assert found.notes == ["Images and ids of the questions were not logged at step 5."]
    one, two, three = found.trajectories
    assert one.id == two.id != three.id
    assert [one.transition, two.transition, three.transition] == ["right", "wrong", "not graded"]
    assert (one.question, one.turns[0].label) == ("1+3?", "Answer")
    assert three.rewards == {"accuracy_reward": None, "advantage": 0.5}


def test_questions_of_other_completions_are_not_taken(tmp_path):
    """As when an earlier run in the folder wrote them, and this one was killed between the two files."""
    log(tmp_path, 5, [line(5, "1+3?")], [{"question": "2+2?", "id": "old"}])
    found = read_logged_completions(tmp_path, 100)
    assert found.trajectories[0].question == "1+3?"
    assert "old" not in found.trajectories[0].id
    assert len(found.notes) == 1


def test_steps_are_spread_and_groups_stay_whole(tmp_path):
    for step in range(1, 24):  # 23 steps of two groups of three
        asked = [{"question": f"{step} and {group}?", "id": f"{group}"} for group in (0, 1) for _ in range(3)]
        log(tmp_path, step, [line(step, each["question"]) for each in asked], asked)
    found = read_logged_completions(tmp_path, 60)  # five a step
    assert [one.step for one in found.trajectories[::3]] == list(range(1, 24, 2))
    assert [one.number for one in found.trajectories] == [1, 2, 3] * 12
    assert len(found.trajectories) == 12 * 3
    assert found.notes == ["Shown are 36 of the 72 completions at 12 of 23 steps that were logged."]
    assert len(read_logged_completions(tmp_path, 72).trajectories) == 72
    # a group is never cut, and of one the last step is what matters
    assert [(one.step, one.number) for one in read_logged_completions(tmp_path, 1).trajectories] == [
        (23, 1),
        (23, 2),
        (23, 3),
    ]


def test_one_id_for_several_questions_is_told_apart(tmp_path):
    asked = [{"question": "1+3?", "id": "7"}, {"question": "2+2?", "id": "7"}]
    log(tmp_path, 1, [line(1, each["question"]) for each in asked], asked)
    log(tmp_path, 2, [line(2, "1+3?")], [{"question": "1+3?", "id": "7"}])
    found = read_logged_completions(tmp_path, 100).trajectories
    assert [(one.id, one.question) for one in found] == [("7", "1+3?"), ("7 (2)", "2+2?"), ("7", "1+3?")]
    write_training_report(
        {"run": tmp_path}, tmp_path / "page.html", shown=100
    )  # which refuses two questions with one id
    assert page_of(tmp_path / "page.html").texts("notes") == ["There is no trainer_state.json, so there are no curves."]


BOTH = {"first_correct": True, "second_correct": False}


@pytest.mark.parametrize(
    ("columns", "texts", "expected"),
    [
        (BOTH, ["a", "b"], [("First answer", True), ("Second answer", False)]),
        (BOTH, ["a"], [("First answer", True), None]),
        ({"first_correct": True}, ["a"], [("Answer", True)]),
        ({"correct": None, "accuracy_reward": 1.0}, ["a"], [("Answer", None)]),
        ({"accuracy_reward": 0.0}, ["a"], [("Answer", False)]),
        ({"accuracy_reward": 0.5}, ["a"], [("Answer", None)]),  # SRPO's has the name too and pays a half
        ({}, ["a"], [("Answer", None)]),
        ({"correct": True}, ["a", "b", "c"], [("First answer", None), ("Second answer", None), ("Answer 3", True)]),
    ],
)
def test_verdicts_of_a_completion(columns, texts, expected):
    completion = {"completion": [{"role": "assistant", "content": text} for text in texts], **columns}
    turns = turns_of(completion, pieces_of(completion))
    assert [turn and (turn.label, turn.correct) for turn in turns] == expected


def test_what_was_read_off_the_last_answer_is_shown():
    completion = {"completion": "so it is 7", "answer": "7"}
    (turn,) = turns_of(completion, pieces_of(completion))
    assert (turn.pieces, turn.answer) == ([("so it is 7", None)], "7")


def test_a_thought_that_the_template_took_out_is_shown():
    answer = {"role": "assistant", "reasoning_content": "3, 4", "content": "7"}
    assert pieces_of({"completion": [answer]}) == [[("<think>\n3, 4\n</think>\n7", None)]]


def test_start_and_end_are_means_of_a_tenth():
    history = [{"step": step, "acc_t1": step / 20, "reward": float(step)} for step in range(1, 21)]
    history += [{"step": 20, "train_loss": 1.0}, {"step": 20, "acc_t1": None, "kl_t1": math.nan}]
    # twenty values: a tenth is two; (1 + 2) / 2 / 20 = 7.5 %, (19 + 20) / 2 / 20 = 97.5 %
    reward, accuracy = progress_table({"": history}).rows
    assert accuracy.marks == [pytest.approx((0.975, 0.075, 0.975))]
    assert [reward, accuracy._replace(marks=[])] == [
        ("Reward", [("1.5", ""), ("19.5", ""), ("+18.0", "")], [None]),
        ("Accuracy: first turn", [("7.5", ""), ("97.5", ""), ("+90.0", "")], []),
    ]
    entropy = ("Entropy", [("0.00123", ""), ("0.00123", ""), ("0.00000", "")], [None])
    assert progress_table({"": [{"step": 1, "entropy": 0.00123}]}).rows == [entropy]


def test_runs_side_by_side():
    """The end of each, and its change since the start."""
    runs = {"a": [{"step": 1, "acc_t1": 0.25}, {"step": 2, "acc_t1": 0.5}], "b": [{"step": 1, "reward": 2.0}]}
    assert progress_table(runs).rows == [
        ("Reward", [("", ""), ("2.00", "0.00")], [None, None]),
        ("Accuracy: first turn", [("50.0", "+25.0"), ("", "")], [(0.5, 0.25, 0.5), None]),
    ]


@pytest.mark.parametrize("name", ["math", "math-vista", "ai2d.test", "my set"])
def test_every_evaluation_set_has_its_line_whatever_it_is_called(name):
    """Those with a hyphen, a point or a space were left out."""
    logged = {"step": 4, f"eval_{name}_runtime": 2.0, f"eval_{name}_acc_t1": 0.5}
    assert [(row.label, row.cells[1]) for row in progress_table({"": [logged]}).rows] == [
        (f"eval_{name}: Accuracy: first turn", ("50.0", ""))
    ]


def test_the_state_that_got_furthest_counts(tmp_path):
    assert not is_training_run(tmp_path)
    assert read_state(tmp_path) == {}
    for place, step in (("", 4), ("checkpoint-9", 9), ("checkpoint-10", 10), ("checkpoint-2", 2)):
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": []}))
    assert read_state(tmp_path)["global_step"] == 10
    assert is_training_run(tmp_path)


def test_files_that_a_killed_run_left_torn_do_not_hide_the_others(tmp_path, caplog):
    for step in (5, 6):
        log(tmp_path, step, [line(step, "1+3?")])
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        state = {"global_step": step, "log_history": [{"step": step, "reward": 0.25}]}
        (folder / "trainer_state.json").write_text(json.dumps(state))
        (folder / "config.json").write_text('{"model_type": "qwen2_5_vl"}')
    torn = [*(folder / name for name in ("trainer_state.json", "config.json"))]
    torn.append(tmp_path / "completions" / "completions_00006.parquet")
    for path in torn:
        path.write_bytes(path.read_bytes()[:-9])
    write_training_report({"run": tmp_path}, tmp_path / "page.html", shown=10)
    page = page_of(tmp_path / "page.html")
    assert len(page.with_class("trajectory")) == 1
    assert read_state(tmp_path)["global_step"] == 5
    assert all(f"{path} is cut off, and left out" in caplog.text for path in torn)


def test_prompts_get_one_shape():
    texts = [[{"role": "user", "content": "one"}], [{"role": "user", "content": "two"}]]
    assert prompts_alike(texts) == texts
    parts = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "three"}]}]
    one = [{"role": "user", "content": [{"type": "text", "text": "one"}]}]
    assert prompts_alike([texts[0], parts, "four"]) == [one, parts, "four"]


def test_only_conversations_lose_their_images():
    values = ["text", 3, None, [], [1, 2], [{"name": "no message"}], {"role": "user"}]
    asked = [{"role": "user", "content": [{"type": "image", "image": object()}, {"type": "text", "text": "What?"}]}]
    bare = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}]
    assert gather_without_images([*values, asked]) == [*values, bare]


def test_what_is_written_of_a_row():
    row = {"prompt": "What?", "id": 7, "category": None, "answer": ["1/2", "0.5"]}
    assert about_question(row) == {"question": "What?", "id": "7", "category": "", "answer": "1/2 or 0.5"}
    assert about_question(row, {"answer"})["answer"] == ""
    assert about_question({**row, "answer": 42})["answer"] == "42"  # which graders take, too
