"""Chains: how a policy's text is read, its scores, sampling and scoring that resume, and measures by hand."""

import math
from collections import Counter
from itertools import cycle

import pytest
import torch
from datasets import Dataset
from scripted import Scripted
from solution_chains import prefixes
from support import ids_of

from trl_mmreason.chain_of_step import template
from trl_mmreason.chain_of_step.chains import Path, PathScore, path_metrics, read_path, score_paths, stored_path
from trl_mmreason.chain_of_step.data import chains_of
from trl_mmreason.chain_of_step.grpo import ChainRewards
from trl_mmreason.chain_of_step.pairs import make_pairs
from trl_mmreason.chain_of_step.process_reward import ProcessRewardModel, Scores
from trl_mmreason.chain_of_step.protocols import Chains, sample_paths
from trl_mmreason.chain_of_step.template import Chain, Step, parse_chain, render_chain
from trl_mmreason.generation import SamplingParams
from trl_mmreason.generation.engine import Failure, Sample
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.jobs.store import SettingsChanged, Store
from trl_mmreason.miniature.tasks import make_problems, problems_dataset

CHAIN = Chain([Step("Read", "A 3 and a 4.", "Yes."), Step("Add", "3+4=7", "Yes.")], "7")
TEXT = render_chain(CHAIN)
FIRST, BOTH = prefixes(CHAIN)
ALONE = "<|answer_start|>7<|answer_end|>"
STEPLESS = f"<|reasoning_start|><|reasoning_end|>{ALONE}"


@pytest.mark.parametrize(
    ("text", "steps", "answer", "scorable", "problem"),
    [
        (TEXT, 2, "7", TEXT, None),
        (f" {TEXT}\n", 2, "7", f" {TEXT}\n", None),
        (BOTH, 2, None, BOTH, "no_answer"),
        (f"{BOTH}<|reasoning_end|>", 2, None, f"{BOTH}<|reasoning_end|>", "no_answer"),
        (f"{BOTH}<|reasoning_end|><|answer_start|>7", 2, None, BOTH, "malformed"),
        (f"{FIRST}<|reasoning_proceed|><|reasoning_step_start|>", 1, None, FIRST, "malformed"),
        (f"{FIRST} and so on", 1, None, FIRST, "malformed"),
        (f"{TEXT} and more", 2, None, BOTH, "malformed"),
        (f"{TEXT}{ALONE}", 2, None, BOTH, "malformed"),
        (f"well, {TEXT}", 0, None, "", "malformed"),
        ("<|reasoning_start|>", 0, None, "", "malformed"),
        ("<|reasoning_start|><|reasoning_step_start|>", 0, None, "", "malformed"),
        (ALONE, 0, "7", ALONE, "no_step"),
        (STEPLESS, 0, "7", STEPLESS, "no_step"),
        ("The answer is 7.", 0, None, "", "no_chain"),
        ("", 0, None, "", "no_chain"),
    ],
)  # fmt: skip
def test_what_a_text_is(text, steps, answer, scorable, problem):
    read = read_path(text)
    assert (read.text, read.answer, read.scorable, read.problem) == (text, answer, scorable, problem)
    assert [text[:end].strip() for end in read.step_ends] == [FIRST, BOTH][:steps]


class KnownScores:
    """Scores 0.9, 0.7, 0.8 … for steps and 0.6 for an answer, and remembers what it was asked."""

    settings = {"kind": "known"}

    def __init__(self):
        self.asked = []

    def score(self, rows):
        self.asked += [row["completion"] for row in rows]
        read = [read_path(row["completion"]) for row in rows]
        return [Scores(torch.tensor([0.9, 0.7, 0.8][: one.steps]), 0.6 if one.answer else None) for one in read]


def test_scores_of_what_a_policy_wrote():
    """w = 0.2: 0.2·0.8 + 0.8·0.6 = 0.64; without an answer 0.2·0.8 = 0.16; without a step 0.8·0.6 = 0.48."""
    texts = [TEXT, "7", f"{BOTH} and so on", ALONE, f"{FIRST}<|reasoning_proceed|>"]
    process_reward = KnownScores()
    scores = score_paths(process_reward.score, [{"prompt": []}] * 5, [read_path(text) for text in texts])
    assert [score.total for score in scores] == pytest.approx([0.64, 0.0, 0.16, 0.48, 0.18])
    assert [len(score.steps) for score in scores] == [2, 0, 2, 0, 1]
    assert [score.answer for score in scores] == [0.6, None, None, 0.6, None]
    assert process_reward.asked == [TEXT, BOTH, ALONE, f"{FIRST}<|reasoning_proceed|>"]
    assert score_paths(process_reward.score, [{"prompt": []}], [read_path("no chain")]) == [PathScore([], None, 0.0)]
    with_steps_alone = score_paths(process_reward.score, [{"prompt": []}], [read_path(TEXT)], step_weight=1.0)
    assert with_steps_alone[0].total == pytest.approx(0.8)


def test_what_a_model_cannot_score_is_never_asked_of_it(bases):
    """A real model: texts that are no chain, hold special tokens, or were cut anywhere."""
    process_reward = ProcessRewardModel.from_pretrained(bases("qwen2_5_vl"), dtype="float32")
    texts = [TEXT[:end] for end in range(0, len(TEXT) + 1, 3)]
    texts += [TEXT.replace("A 3", "<|image_pad|><|im_end|>"), "<|image_pad|>", "\ud800", TEXT.replace("A 3", "\x00")]
    rows = [{"prompt": [{"role": "user", "content": "What is 3+4?"}]}] * len(texts)
    scores = score_paths(process_reward.score, rows, [read_path(text) for text in texts])
    assert all(0 <= score.total <= 1 for score in scores)
    assert scores[0].total == 0
    assert scores[-4].answer is not None
    assert scores[-1].answer is not None


def writer(*texts):
    """An engine that writes these texts of five tokens in turn; None is a failure."""
    replies = cycle(Failure("no") if text is None else Sample(text, "stop", token_ids=[1] * 5) for text in texts)
    return Scripted(lambda request, times: next(replies))


def questions(n=2):
    return problems_dataset(make_problems(["adding"], n)).map(lambda row: {"answer": "7"})


def test_sampled_paths_are_graded_by_the_answer_of_the_chain(tmp_path):
    wrong = TEXT.replace("<|answer_start|>7", "<|answer_start|>8")
    texts = [TEXT, wrong, BOTH, "The answer is 7."]
    with Store(tmp_path / "store.sqlite") as store:
        paths = sample_paths(questions(1), writer(*texts), store, "paths", n=4)
    (found,) = paths.values()  # the last is right, but no chain says so
    expected = [(index, text, 5, index == 0) for index, text in enumerate(texts)]
    assert [(path.index, path.text, path.tokens, path.correct) for path in found] == expected
    assert [path.read.problem for path in found] == [None, None, "no_answer", "no_chain"]


def test_more_paths_ask_for_the_missing_ones_alone_and_failures_are_left_out(tmp_path):
    engine = writer(TEXT, None, BOTH)
    with Store(tmp_path / "store.sqlite") as store:
        paths = sample_paths(questions(1), engine, store, "paths", n=2, retries=0)
        assert [[path.index for path in found] for found in paths.values()] == [[0]]
        paths = sample_paths(questions(1), engine, store, "paths", n=3, retries=0)
        assert [[path.index for path in found] for found in paths.values()] == [[0, 2]]
        assert len(engine.asked) == 3
        with pytest.raises(SettingsChanged, match="temperature"):
            sample_paths(questions(1), engine, store, "paths", n=3, sampling_params=SamplingParams(temperature=0.5))


def scores_of(paths):
    return [path.score for found in paths.values() for path in found]


def test_scores_are_kept_and_another_weight_scores_nothing_anew(tmp_path):
    engine, process_reward = writer(TEXT, ALONE), KnownScores()
    with Store(tmp_path / "store.sqlite") as store:
        paths = sample_paths(questions(), engine, store, "paths", n=2, protocol=Chains(process_reward))
        assert scores_of(paths) == pytest.approx([0.64, 0.48] * 2)
        assert len(process_reward.asked) == 4
        paths = sample_paths(questions(), engine, store, "paths", n=2, protocol=Chains(process_reward, step_weight=0.0))
        assert scores_of(paths) == pytest.approx([0.6] * 4)
        assert len(process_reward.asked) == len(engine.asked) == 4


def test_every_path_has_a_seed_of_its_own_and_is_scored_with_its_own_question(tmp_path):
    class NotingReward(KnownScores):
        def score(self, rows):
            self.rows += rows
            return super().score(rows)

    engine, process_reward, rows = writer(TEXT, ALONE, BOTH, FIRST, STEPLESS, TEXT), NotingReward(), questions()
    process_reward.rows = []
    rows = rows.map(lambda row, number: {"prompt": [{"role": "user", "content": str(number)}]}, with_indices=True)
    with Store(tmp_path / "store.sqlite") as store:
        sample_paths(rows, engine, store, "paths", n=3)
        fewer = sample_paths(rows, engine, store, "paths", n=2, protocol=Chains(process_reward))
    assert len({request.seed for request in engine.asked}) == len(engine.asked) == 6
    assert [[path.text for path in found] for found in fewer.values()] == [[TEXT, ALONE], [FIRST, STEPLESS]]
    asked = [(row["prompt"][0]["content"], row["completion"]) for row in process_reward.rows]
    assert asked == [("0", TEXT), ("0", ALONE), ("1", FIRST), ("1", STEPLESS)]
    images = [[image.tobytes() for image in row["images"]] for row in process_reward.rows]
    assert images == [[rows[number]["images"][0].tobytes()] for number in (0, 0, 1, 1)]


def test_a_real_policy_scored_by_a_real_model(bases, tmp_path):
    engine = TransformersEngine(bases("qwen2_5_vl"), dtype="float32")
    process_reward = ProcessRewardModel.from_pretrained(bases("qwen2_5_vl"), dtype="float32")
    with Store(tmp_path / "store.sqlite") as store:
        asking = {"n": 2, "protocol": Chains(process_reward), "sampling_params": SamplingParams(max_new_tokens=5)}
        paths = sample_paths(questions(), engine, store, "paths", **asking)
    assert [len(found) for found in paths.values()] == [2, 2]
    assert all(path.tokens <= 5 for found in paths.values() for path in found)
    assert scores_of(paths) == [0.0] * 4  # a random policy writes no chain


def test_measures_by_hand():
    """Two texts of 2 steps, a lone answer, and no chain: 4 / 4 steps; 1 of 4 is whole; 1 of 3 graded is right."""
    paths = [
        Path(0, read_path(TEXT), 5, True, 0.6),
        Path(1, read_path(f"{BOTH} and"), 9, False, 0.2),
        Path(2, read_path(ALONE), 1, None, 0.0),
        Path(3, read_path("7"), 1, False, 0.0),
    ]
    metrics = path_metrics(paths, len)
    one = len(FIRST) - len("<|reasoning_start|>")
    other = len(BOTH) - len(FIRST) - len("<|reasoning_proceed|>")
    assert metrics == {
        "steps": 1.0,
        "step_tokens": (one + other) / 2,
        "complete": 0.25,
        "accuracy": pytest.approx(1 / 3),
        "trajectory_score": pytest.approx(0.2),
    }
    assert math.isnan(path_metrics([], len)["accuracy"])


def test_a_dataset_of_single_images(tmp_path):
    """`image` is taken for `images`, in requests and in scoring."""
    engine, rows = writer(TEXT), questions().to_list()
    for row, problem in zip(rows, make_problems(["adding"], 2), strict=True):
        del row["images"]
        row["image"] = problem.image
    singles = Dataset.from_list(rows)
    with Store(tmp_path / "store.sqlite") as store:
        sample_paths(singles, engine, store, "paths", n=1)
    assert [len(request.images) for request in engine.asked] == [1, 1]


def test_prefixes_of_a_chain_are_scorable():
    for prefix in prefixes(parse_chain(TEXT)):
        assert read_path(prefix).scorable == prefix


@pytest.fixture
def parsed(monkeypatch):
    """The texts that were parsed, each as often as it was."""
    texts, parse = [], template._read
    monkeypatch.setattr(template, "_read", lambda text: texts.append(text) or parse(text))
    return texts


def test_a_sampled_path_is_parsed_once_until_it_is_paired(bases, tmp_path, parsed):
    """Sampled, graded, scored by a real model, measured and paired; answers without a step need no parser."""
    process_reward = ProcessRewardModel.from_pretrained(bases("qwen2_5_vl"), dtype="float32")
    texts = [TEXT, f"{BOTH} and so on", BOTH, TEXT.replace("7<|answer", "8<|answer"), ALONE, "It is 7."]
    rows = questions(1)
    with Store(tmp_path / "store.sqlite") as store:
        paths = sample_paths(rows, writer(*texts), store, "paths", n=6, protocol=Chains(process_reward))
        assert sorted(parsed) == sorted(texts[:4])
        path_metrics(paths[rows["id"][0]], len)
        make_pairs(rows, paths, {id_: [path.score for path in found] for id_, found in paths.items()}, threshold=0)
        chains_of(rows, paths)
        assert len(parsed) == 4
        sample_paths(rows, writer(), store, "paths", n=6, protocol=Chains(process_reward))  # read from the store
    assert len(parsed) == 4


def test_a_path_of_an_older_store_is_parsed_when_it_is_read():
    assert stored_path({"turns": [{"text": TEXT, "correct": True}]}) == read_path(TEXT)


def test_a_batch_of_grpo_is_parsed_once(bases, parsed):
    """Begun while it was sampled, graded, scored by a real model and logged."""
    process_reward = ProcessRewardModel.from_pretrained(bases("qwen2_5_vl"), dtype="float32")
    rewards = ChainRewards(process_reward.processing_class, process_reward)
    texts = [TEXT, f"{BOTH} and so on", BOTH, TEXT.replace("A 3", "A 9")]
    prompt = [{"role": "user", "content": "What is 3+4?"}]
    rows = [{"prompt": prompt, "answer": "7"}] * 4
    rewards.begin(rows[:2], texts[:2], are_all=False)
    rewards.begin(rows, texts, are_all=True)
    ids = [ids_of(rewards.processing_class, text) for text in texts]
    logged = Counter()
    columns = {"answer": ["7"] * 4, "log_metric": lambda name, _: logged.update([name]), "log_extra": lambda *_: None}
    assert all(rewards.function(prompts=[prompt] * 4, completion_ids=ids, **columns))
    assert logged["step_tokens"] == 8
    assert sorted(parsed) == sorted(texts)
