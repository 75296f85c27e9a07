"""examples/sophia.py: every stage with a tiny model, again, and with what it refuses."""

import json
import shutil

import pytest
from chat_stub import Handler, chat_stub
from datasets import Dataset, Features, Image, List, Value
from example_runs import SMALL_COMMON, StagedExample, save_base
from safetensors.torch import load_file

from trl_mmreason.jobs.store import SettingsChanged, Store
from trl_mmreason.miniature.captions import DESCRIBE, caption
from trl_mmreason.miniature.solutions import plain, solve
from trl_mmreason.miniature.tasks import make_problems
from trl_mmreason.scripts.refusals import WrongArgument
from trl_mmreason.sophia.prompts import CAPTION_PROMPT
from trl_mmreason.sophia.recipe import SophiaArguments

pytestmark = pytest.mark.full

SETTINGS = {
    "train_rows": 8,
    "thinking_prompt": "Think in tags.",
    "max_completion_length": 40,
    "sampling_batch_size": 32,
    "common": SMALL_COMMON,
    "reasoner": "rule",
    "drawn_problems": 6,
    "sampling": {"captions": 2, "trajectories": 4, "threshold": 0.7, "caption_tokens": 30, "tokens": 64, "keep": 8},
    "warm_up": {"num_train_epochs": 100, "learning_rate": 2e-3, "per_device_train_batch_size": 12}
    | {"sequence_reduction": "mean", "trainable_parts": ["vision", "projector", "language"]},
    "update": {"num_train_epochs": 1, "learning_rate": 1e-3, "per_device_train_batch_size": 2},
    "difficulty": {"n": 2, "low": 0.0, "high": 1.0},
    "grpo": {"max_steps": 1, "learning_rate": 0.0, "num_generations": 4, "per_device_train_batch_size": 8},
    "evaluation": {"temperature": 0.0},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The warm-up shows the policy the very images that it will describe, so that its captions are good."""
    root = tmp_path_factory.mktemp("sophia")
    rows = [
        {"prompt": prompt, "completion": said, "images": [problem.image]}
        for problem in make_problems(["adding"], 6, seed=2)
        for prompt, said in (
            ([{"role": "user", "content": DESCRIBE}], caption(problem)),
            (problem.prompt, plain(solve(problem))),
        )
    ]
    message = List({"role": Value("string"), "content": Value("string")})
    features = Features({"prompt": message, "completion": Value("string"), "images": List(Image())})
    Dataset.from_list(rows, features=features).to_parquet(root / "warm_up.parquet")
    policy = {"model_name_or_path": save_base(root / "base", in_steps=True)}
    return StagedExample("sophia", root, {**policy, "warm_up_dataset": str(root / "warm_up.parquet"), **SETTINGS})


def test_every_stage_leaves_its_result_and_the_table_names_all(run):
    table = (run.folder / "evaluation/table.txt").read_text()
    assert table.strip() in run.done.stdout
    assert table.splitlines()[0].split()[-4:] == ["before", "SOPHIA", "SOPHIA-GRPO", "GRPO"]
    assert table.splitlines()[1].startswith("accuracy")
    for stage in ("warm_up", "update", "grpo", "base_grpo"):
        assert (run.folder / stage / "model/model.safetensors").exists(), stage
        assert (run.folder / stage / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (run.folder / "evaluation/compared.html").stat().st_size > 10_000


def test_every_policy_is_measured_under_the_thinking_prompt(run):
    for name in ("before", "SOPHIA", "SOPHIA-GRPO", "GRPO"):
        made = json.loads((run.folder / "evaluation" / name / "results.json").read_text())
        assert made["settings"]["system_prompt"] == "Think in tags."


def test_captions_know_no_question_and_rows_no_caption(run):
    """In what was really sampled and written: the policy was asked one thing only, and no prompt holds a caption."""
    with Store(run.folder / "trajectories.sqlite") as store:
        assert store.stages()["sophia-captions"]["prompt"] == DESCRIBE
        captions = {record.payload["turns"][0]["text"] for record in store.records("sophia-captions")}
    assert captions
    rows = Dataset.from_parquet(str(run.folder / "trajectories.parquet"))
    assert len(rows) > 6  # up to 8 a question
    for row in rows:
        assert [message["role"] for message in row["prompt"]] == ["system", "user"]
        assert row["prompt"][0]["content"] == "Think in tags."
        assert not any(said and said in json.dumps(row["prompt"]) for said in captions)
        assert "digit is" not in row["prompt"][1]["content"]
        assert "<think>" in row["completion"]
        assert row["reward"] == 1.0
        assert row["images"]


def test_what_is_finished_is_not_done_again(run):
    run.assert_done_once()


def test_other_settings_are_refused(run):
    pipeline = run.pipeline(run.folder)
    pipeline.args.update["beta"] = 0.1
    with pytest.raises(SettingsChanged, match="stage 'update' was begun with other settings"):
        pipeline.do("update")


@pytest.mark.parametrize(
    ("stage", "before"),
    [("trajectories", "warm_up"), ("update", "trajectories"), ("grpo", "update")],
)
def test_a_stage_out_of_order_names_the_one_before(stage, before, run, tmp_path):
    with pytest.raises(FileNotFoundError, match=rf"does not exist\. Run the stage {before} first"):
        run.pipeline(tmp_path).do(stage)


def test_questions_that_are_selected_already_are_all_kept(run, tmp_path):
    pipeline, learnt = run.pipeline(tmp_path, "--warm_up_dataset", "null"), []
    pipeline.args.difficulty |= {"n": 0}
    pipeline.trainer = lambda trainer_class, policy, config, rows, **settings: rows
    pipeline.learn = learnt.append
    pipeline.base_grpo()
    assert learnt == [pipeline.train_rows]
    assert not (tmp_path / "difficulty.sqlite").exists()


def test_a_difficulty_that_leaves_no_question_ends_before_grpo(run, tmp_path):
    """Nothing that an untrained policy answers is always right."""
    pipeline = run.pipeline(tmp_path)
    pipeline.args.difficulty |= {"low": 1.0}
    with pytest.raises(WrongArgument, match="^grpo: no question is left; widen --difficulty.low"):
        pipeline.reinforce(str(run.folder.parent / "base"), "grpo")


def test_without_a_warm_up_the_policy_that_came_is_measured(run, tmp_path, monkeypatch, capsys):
    """A path, or a Hub id, which is no path; here of a cached model, as the Hub is out of reach."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", tmp_path)
    (tmp_path / "models--owner--name/snapshots").mkdir(parents=True)
    pipeline = run.pipeline(tmp_path, "--warm_up_dataset", "null")
    pipeline.do("warm_up")
    pipeline.measure()
    assert capsys.readouterr().out.split("\n")[1].split()[-1] == "before"
    given = ("--warm_up_dataset", "null", "--model_name_or_path", "owner/name")
    assert run.pipeline(tmp_path, *given).start == "owner/name"


def test_grpo_without_sophia_starts_with_the_policy_that_came(run):
    """Table 1, "+GRPO". Both runs of GRPO ask the questions that this policy finds neither too easy nor too hard (B.2),
    and keep what B.1 freezes: their vision encoders are those that they began with."""

    def encoder(path):
        return {name: weight for name, weight in load_file(path / "model.safetensors").items() if "visual" in name}

    base = run.folder.parent / "base"
    for began, stage in ((base, "base_grpo"), (run.folder / "update/model", "grpo")):
        first, last = encoder(began), encoder(run.folder / stage / "model")
        assert first
        assert all(first[name].equal(weight) for name, weight in last.items())
    taught = encoder(run.folder / "warm_up/model")
    assert not all(taught[name].equal(weight) for name, weight in encoder(base).items())
    with Store(run.folder / "difficulty.sqlite") as store:
        assert store.stages()["difficulty"]["engine"]["model"] == str(base)


class Lenient(Handler):
    """A judge that reads a 7 off every text, and to whom all answers are right."""

    def answer(self, body):
        asks_for_an_answer = body["messages"][-1]["content"].endswith("Extracted answer:")
        self.say("7" if asks_for_an_answer else "Judgement: 1")


def test_a_generative_verifier_decides_in_grpo_and_about_its_questions(run, tmp_path):
    """B.2: it is asked, as by the rules some of these answers are wrong; to it none is, and no group has a contrast."""
    policy = ("--model_name_or_path", run.folder / "warm_up/model", "--warm_up_dataset", "null")
    with chat_stub(Lenient) as judge:
        run.pipeline(tmp_path, *policy, "--judge_model", "j", "--judge_server", judge.url).do("base_grpo")
        assert {body["model"] for body in judge.bodies} == {"j"}
    with Store(tmp_path / "difficulty.sqlite") as store:
        (graded,) = [stage for stage in store.stages() if stage.startswith("difficulty-verdicts-")]
        assert all(record.payload["turns"][0]["correct"] for record in store.records(graded))
    state = json.loads((tmp_path / "base_grpo/model/trainer_state.json").read_text())
    assert [state["log_history"][0][name] for name in ("reward", "dropped_all_right")] == [1.0, 1.0]
    with pytest.raises(SettingsChanged, match="stage 'base_grpo' was begun with other settings"):
        run.pipeline(tmp_path, *policy).do("base_grpo")


def test_captions_are_data_if_asked_for(run, tmp_path):
    """Table A2, DI: the update has a step for every two rows, and the captions with all trajectories right are rows."""
    rows = run.folder / "trajectories.parquet"
    made = Dataset.from_parquet(str(rows))
    told = zip(made["id"], made["caption_reward"], strict=True)
    right = len({id_.rpartition(".")[0] for id_, reward in told if reward == 1})  # a caption may have several rows
    assert right
    pipeline = run.pipeline(tmp_path, "--warm_up_dataset", "null", "--captions_as_data", "beside")
    shutil.copy(rows, tmp_path / "trajectories.parquet")
    pipeline.do("update")
    state = json.loads((tmp_path / "update/model/trainer_state.json").read_text())
    assert state["global_step"] == (len(made) + right + 1) // 2


@pytest.mark.parametrize(
    ("dataset", "sampling", "said"),
    [
        ("miniature", {}, DESCRIBE),
        ("rows.parquet", {}, CAPTION_PROMPT),
        ("rows.parquet", {"caption_prompt": "Describe."}, "Describe."),
    ],
)
def test_captions_are_learnt_as_answers_to_what_they_were_sampled_with(run, tmp_path, dataset, sampling, said):
    given = ("--warm_up_dataset", "null", "--captions_as_data", "beside", "--trajectory_dataset", dataset)
    pipeline = run.pipeline(tmp_path, *given)
    pipeline.args.sampling |= sampling
    shutil.copy(run.folder / "trajectories.parquet", tmp_path)
    learnt = []
    pipeline.trainer = lambda trainer_class, policy, config, rows, **settings: rows
    pipeline.learn = learnt.append
    pipeline.update()
    (rows,) = learnt
    captions = rows.select(range(len(Dataset.from_parquet(str(tmp_path / "trajectories.parquet"))), len(rows)))
    assert {prompt[-1]["content"] for prompt in captions["prompt"]} == {said}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stages": "sft"}, "unknown stage 'sft'; expected warm_up,trajectories,update,grpo,base_grpo"),
        ({"reasoner": "r1"}, "reasoner='r1', expected one of model, rule"),
        ({"captions_as_data": "behind"}, "captions_as_data='behind', expected one of none, beside, before"),
        ({"judge_server": "http://127.0.0.1:1"}, "judge_server='http://127.0.0.1:1' came without judge_model"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        SophiaArguments(dataset_name="miniature/adding", **settings)
