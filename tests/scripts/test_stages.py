"""Stages of example scripts: what their settings notice, and what they say out of order."""

import hashlib
import sys
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

import pytest
import torch
import yaml
from example_runs import ROOT, train_here
from peft import LoraConfig
from support import adapo_trainer, drawn_rows, load
from trl import ModelConfig

from trl_mmreason import ChainOfStepGRPOConfig
from trl_mmreason.chain_of_step.recipe import ChainOfStepArguments
from trl_mmreason.data.folders import NoSuchFolder
from trl_mmreason.jobs.store import SettingsChanged
from trl_mmreason.scripts import stages
from trl_mmreason.scripts.refusals import WrongArgument
from trl_mmreason.scripts.script_parser import ScriptParser
from trl_mmreason.scripts.sections import StagedArguments, made_by, values_of
from trl_mmreason.scripts.single_stage import train_once
from trl_mmreason.scripts.stages import do_once, save_merged
from trl_mmreason.self_evolution.recipe import EvolutionArguments
from trl_mmreason.sophia.recipe import SophiaArguments


@dataclass
class Arguments(StagedArguments):
    STAGES = {"read": "finished"}

    source: str | None = None
    mixed_in: dict = field(default_factory=dict)
    prompt: str = "long " * 1000


def test_another_file_under_the_same_name_is_noticed(tmp_path):
    """Also inside a section; SHA-256 of no bytes begins with e3b0c442."""
    rows = tmp_path / "rows.parquet"
    rows.write_bytes(b"")
    args = Arguments("drawn", source=str(rows), mixed_in={"general": {"dataset": str(rows), "share": 0.5}})
    read = args.read_by(["source", "mixed_in", "prompt"])
    assert read["source"].startswith(f"{rows}, SHA-256 e3b0c442")
    assert read["mixed_in"]["general"] == {"dataset": read["source"], "share": 0.5}
    assert read["prompt"] == args.prompt
    done = []
    do_once(tmp_path, "read", read, tmp_path / "finished", lambda: done.append(1))
    rows.write_bytes(b"other rows")
    with pytest.raises(
        SettingsChanged, match="stage 'read' was begun with other settings(?s:.*): another --output_dir.$"
    ):
        do_once(tmp_path, "read", args.read_by(read), tmp_path / "finished", lambda: done.append(2))
    assert done == [1]


def test_another_file_in_a_folder_of_rows_is_noticed(tmp_path):
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "README.md").write_text("not read")
    args = Arguments("drawn", source=str(rows))
    assert args.read_by(["source"]) == {"source": str(rows)}
    for name in ("judged", "sampled"):
        (rows / f"{name}.parquet").write_bytes(name.encode())
    sums = [hashlib.sha256(name).hexdigest() for name in (b"judged", b"sampled")]
    assert args.read_by(["source"]) == {"source": f"{rows}, SHA-256 {sums[0]}, SHA-256 {sums[1]}"}
    before = args.read_by(["source"])
    (rows / "data/train").mkdir(parents=True)
    for name in ("a.jsonl", "b.csv", "c.tsv", "data/train-00000.parquet", "data/train/metadata.jsonl", "data.arrow"):
        (rows / name).write_text("{}")
        assert args.read_by(["source"]) != before
        before = args.read_by(["source"])


def test_rows_below_the_home_folder_and_of_a_mixture_are_compared_by_what_they_hold(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    rows = tmp_path / "rows/of_spark.parquet/part-0.parquet"  # in a folder with the name of a file
    rows.parent.mkdir(parents=True)
    (tmp_path / "mixture.yaml").write_text("sources: [{source: rows, weight: 1}, {source: owner/name, weight: 1}]")
    read = []
    for content in (b"some", b"others"):
        rows.write_bytes(content)
        args = Arguments("drawn", source={"text": {"dataset": "~/rows", "share": 0.5}})
        read += [args.read_by(["source"]), Arguments("drawn", source="~/mixture.yaml").read_by(["source"])]
    assert f"~/rows, SHA-256 {hashlib.sha256(b'some').hexdigest()}" == read[0]["source"]["text"]["dataset"]
    assert read[0] != read[2]
    assert read[1] != read[3]


def test_rows_below_a_folder_of_images_or_one_that_is_called_as_a_split_are_not_compared(tmp_path, monkeypatch):
    """A run that writes below image_root, such as its tables of completions, could not resume."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").mkdir()
    (tmp_path / "train/rows.jsonl").write_text("{}")
    found = Arguments("drawn", image_root=".").read_by(["image_root", "dataset_split"])
    assert found == {"image_root": ".", "dataset_split": "train"}


@dataclass
class AskingArguments(Arguments):
    READS = {"read": ()}
    ASKING = ("read",)


class OneStage(stages.Pipeline):
    def read(self):
        (self.folder / "finished").touch()


@pytest.mark.parametrize(
    "changed",
    [
        {"system_prompt": "Look twice."},
        {"columns": {"answer": "solution"}},
        {"max_pixels": 784},
        {"tolerance": "lenient"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_finished_stage_is_none_of_questions_that_are_read_otherwise(tmp_path, changed):
    def run(**given):
        args = AskingArguments(
            "miniature/adding", train_rows=1, output_dir=str(tmp_path), common={"use_cpu": True}, **given
        )
        OneStage(args, ModelConfig("policy")).do("read")

    run()
    run()
    with pytest.raises(SettingsChanged, match=rf"{next(iter(changed))}: \(absent\) → "):
        run(**changed)


def test_a_finished_stage_is_none_of_another_revision_of_the_policy(tmp_path):
    args = AskingArguments("miniature/adding", train_rows=1, output_dir=str(tmp_path), common={"use_cpu": True})
    OneStage(args, ModelConfig("policy")).do("read")
    with pytest.raises(SettingsChanged, match=r"model_revision: \(absent\) → 'v2'"):
        OneStage(args, ModelConfig("policy", model_revision="v2")).do("read")


@pytest.mark.parametrize(
    ("changed", "value"),
    [
        *(("use_dora", True), ("load_in_4bit", True), ("load_in_8bit", True)),
        *(("bnb_4bit_quant_type", "fp4"), ("use_bnb_nested_quant", True), ("dtype", "bfloat16")),
    ],
)
def test_a_finished_stage_is_none_of_another_kind_of_adapter_or_of_other_bits(tmp_path, changed, value):
    args = AskingArguments("miniature/adding", train_rows=1, output_dir=str(tmp_path), common={"use_cpu": True})
    OneStage(args, ModelConfig("policy", use_peft=True)).do("read")
    with pytest.raises(SettingsChanged, match=rf"{changed}: \(absent\) → {value!r}"):
        OneStage(args, ModelConfig("policy", use_peft=True, **{changed: value})).do("read")


def test_a_stage_names_the_one_that_it_needs(tmp_path):
    with pytest.raises(NoSuchFolder, match="model does not exist. Run the stage update first"):
        made_by("update", tmp_path / "model")
    assert made_by("update", tmp_path) == str(tmp_path)


def test_numbers_that_yaml_takes_for_texts_are_numbers_in_inner_sections_too():
    given = yaml.safe_load("{beta: 1e-1, scheduler: linear, sft: {learning_rate: 1e-3, run_name: '10'}}")
    sft = {"learning_rate": 0.001, "run_name": "10"}  # quotes make a text
    assert values_of(given) == {"beta": 0.1, "scheduler": "linear", "sft": sft}


@dataclass
class TwoStages(StagedArguments):
    STAGES = {"learn": "learn/model", "look": "table.txt"}
    READS = {"learn": ("rounds",)}
    SECTIONS = {"learn": "ReflectionSFTConfig", "later": "ChainOfStepGRPOConfig", "look": ("n", "max_steps")}

    output_dir: str = "never"
    learn: dict = field(default_factory=dict)
    later: dict = field(default_factory=dict)
    look: dict = field(default_factory=dict)


def parse_arguments(kind):
    return ScriptParser((kind, ModelConfig)).parse_args_and_config()


@pytest.mark.parametrize(
    ("setting", "message"),
    [({"learning_rat": 1e-3}, ".*'learning_rat'"), ({"save_strategy": "hourly"}, "hourly is no")],
)
def test_a_setting_that_a_stage_refuses_is_named_with_its_section(setting, message, tmp_path):
    args = TwoStages(str(tmp_path), common={"use_cpu": True}, learn=setting)
    with pytest.raises(WrongArgument, match=f"^learn: {message}"):
        args.config("learn", tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_stage_without_a_gpu_names_the_options(tmp_path):
    args = TwoStages(str(tmp_path), common={"bf16": True})
    expected = "^bf16 asks for a GPU, and there is none. Fix: --common.use_cpu true --common.bf16 false$"
    with pytest.raises(WrongArgument, match=expected):
        args.config("learn", tmp_path)


@pytest.mark.parametrize(
    ("sections", "options", "message"),
    [
        ("look: {max_step: 3}", [], "recipe.yaml: look: there is no `max_step`; did you mean `max_steps`?"),
        ("learn: {lr: 1}\nlater:", [], "recipe.yaml: learn: ReflectionSFTConfig has no `lr`"),
        ("look:", ["--look.max_step", "3"], "--look.max_step: there is no `max_step`; did you mean `max_steps`?"),
        ("learn: {max_steps: 2.5}", [], "recipe.yaml: learn: max_steps: 2.5, expected a whole number"),
        ("learn:", ["--learn.use_cpu", "'false'"], '--learn.use_cpu: use_cpu: "false", expected true or false'),
        # of the trainers that the wanted stages start: the other one has it
        ("common: {num_generations: 8}", [], "recipe.yaml: common: ReflectionSFTConfig has no `num_generations`"),
    ],
)
def test_all_sections_are_checked_before_a_stage(sections, options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(f"dataset_name: miniature/adding\n{sections}\n")
    monkeypatch.setattr("sys.argv", ["example.py", "--config", "recipe.yaml", *options])
    with pytest.raises(SystemExit):
        parse_arguments(TwoStages)
    assert capsys.readouterr().err.rstrip("\n") == f"example.py: error: {message}"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"run_name": "run #3: all"}, {"run_name": "run #3: all"}),
        ({"run_name": "#3"}, {"run_name": "#3"}),
        ({"run_name": "null", "learning_rate": "1e-3"}, {"run_name": None, "learning_rate": 1e-3}),
        ({"run_name": "'7 # seven'", "report_to": "[none]"}, {"run_name": "7 # seven", "report_to": ["none"]}),
        ({"lr_scheduler_kwargs": "{a: b}"}, {"lr_scheduler_kwargs": {"a": "b"}}),
        ({"run_name": '"mine" again', "project": "[a] b"}, {"run_name": '"mine" again', "project": "[a] b"}),
        *(({"run_name": date}, {"run_name": date}) for date in ("2026-11-30", "2026-02-30")),
    ],
)
def test_text_of_an_option_stays_as_it_is_where_yaml_would_read_a_comment_or_a_mapping(given, meant):
    options = [part for name, value in given.items() for part in (f"--learn.{name}", value)]
    args = TwoStages("miniature/adding")
    ScriptParser((TwoStages, ModelConfig)).override_sections(args, options)
    assert args.learn == meant


def test_options_of_sections_in_a_file_keep_their_types(tmp_path):
    lines = ["dataset_name: miniature/adding", "learn.run_name: null", "learn.project: '007'", "learn.max_steps: 3"]
    (tmp_path / "recipe.yaml").write_text("\n".join(lines))
    given = ["--config", str(tmp_path / "recipe.yaml"), "--learn.max_steps", "4"]
    args, _ = ScriptParser((TwoStages, ModelConfig)).parse_args_and_config(given)
    assert args.learn == {"run_name": None, "project": "007", "max_steps": 4}


def test_what_only_methods_of_one_stage_have_is_refused():
    with pytest.raises(ValueError, match="^overwrite_output_dir is for methods of one stage; .* Fix: another output_"):
        Arguments("miniature/adding", overwrite_output_dir=True)
    resumed = {"resume_from_checkpoint": "runs/a/checkpoint-5"}
    faults = TwoStages("miniature/adding", learn=resumed, later={"resume_from_checkpoint": "auto"}).unknown_settings()
    fault = "`resume_from_checkpoint` is for methods of one stage, as every stage resumes by itself. Fix: leave it out"
    assert [*faults] == [("learn", "resume_from_checkpoint", fault)]


def test_what_the_user_sets_for_all_trainers_comes_before_a_script_s_own(tmp_path):
    args = TwoStages("miniature/adding", common={"use_cpu": True, "bf16": False, "max_completion_length": 64})
    assert args.config("later", tmp_path, max_completion_length=8).max_completion_length == 64
    args.later = {"max_completion_length": 32}
    assert args.config("later", tmp_path, max_completion_length=8).max_completion_length == 32


def test_no_process_begins_a_stage_before_all_have_looked_whether_it_is_finished(tmp_path, monkeypatch):
    """Else a slow process would find the file of a fast one, leave the stage out, and be missing in what follows."""
    events = []
    monkeypatch.setattr(stages.PartialState, "wait_for_everyone", lambda _: events.append("all are here"))
    for _ in range(2):
        do_once(tmp_path, "read", {}, tmp_path / "finished", lambda: events.append((tmp_path / "finished").touch()))
    assert events == ["all are here", None, "all are here", "all are here"]


def test_common_settings_are_compared_with_the_trainers_of_the_wanted_stages(tmp_path, monkeypatch):
    (tmp_path / "recipe.yaml").write_text("dataset_name: miniature/adding\ncommon: {num_generations: 8}\nlearn:\n")
    given = ["--config", str(tmp_path / "recipe.yaml"), "--stages", "look"]
    monkeypatch.setattr("sys.argv", ["example.py", *given])
    args, _ = parse_arguments(TwoStages)
    assert (args.common, args.learn) == ({"num_generations": 8}, {})


class Recorded:
    """An engine that knows what it was made of, and whether it was closed."""

    def __init__(self, model, **settings):
        self.model, self.settings, self.closed = model, settings, False

    def close(self):
        self.closed = True


def test_policies_are_sampled_by_vllm_where_the_section_says_so_and_adapters_by_transformers(tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "VLLMProcess", Recorded)
    monkeypatch.setattr(stages, "TransformersEngine", lambda path, **settings: ("transformers", path, settings))
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    asked = {"dataset_name": "miniature/adding", "train_rows": 1, "common": {"use_cpu": True}}
    transformers = {"batch_size": 32}
    pipeline = stages.Pipeline(Arguments(**asked), ModelConfig())
    assert pipeline.sampler(tmp_path) == ("transformers", str(tmp_path), transformers)
    pipeline = stages.Pipeline(Arguments(**asked, vllm={"max_model_len": 64}), ModelConfig())
    made = pipeline.sampler(tmp_path)
    assert (made.model, made.settings) == (str(tmp_path), {"max_model_len": 64})
    assert pipeline.sampler(adapter) == ("transformers", str(adapter), transformers)


def test_the_policy_as_it_came_is_sampled_in_the_revision_that_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "VLLMProcess", Recorded)
    monkeypatch.setattr(stages, "TransformersEngine", lambda path, **settings: settings.get("revision"))
    asked = {"dataset_name": "miniature/adding", "train_rows": 1, "common": {"use_cpu": True}}
    policy = ModelConfig("policy", model_revision="v2")
    pipeline = stages.Pipeline(Arguments(**asked), policy)
    assert (pipeline.sampler("policy"), pipeline.sampler(tmp_path)) == ("v2", None)
    looked_at = []  # whether that revision is an adapter
    monkeypatch.setattr(stages, "find_adapter_config_file", lambda _, revision=None: looked_at.append(revision))
    pipeline = stages.Pipeline(Arguments(**asked, vllm={"max_model_len": 64}), policy)
    assert pipeline.sampler("policy").settings == {"revision": "v2", "max_model_len": 64}
    assert looked_at == ["v2"]
    assert stages.Pipeline(Arguments(**asked), ModelConfig("policy")).sampler("policy") is None


def test_one_vllm_is_alive_at_a_time_and_none_while_a_trainer_trains(monkeypatch):
    monkeypatch.setattr(stages, "VLLMProcess", Recorded)
    args = Arguments("miniature/adding", train_rows=1, common={"use_cpu": True}, vllm={"max_model_len": 64})
    pipeline = stages.Pipeline(args, ModelConfig("policy"))
    first = pipeline.sampler("first")
    assert pipeline.sampler("first") is first
    assert not first.closed
    second = pipeline.sampler("second")
    assert (first.closed, second.closed) == (True, False)

    class Trainer:
        def __init__(self, *_, **__):
            assert second.closed

    config = ChainOfStepGRPOConfig("out", use_cpu=True)
    assert isinstance(pipeline.trainer(Trainer, "second", config, pipeline.train_rows), Trainer)
    assert pipeline.sampler("second") is not second


@pytest.mark.parametrize("meant", [True, False])
def test_on_the_cpu_of_the_launcher_vllm_is_left_out_unless_the_cpu_was_asked_for(monkeypatch, caplog, meant):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    args = Arguments("miniature/adding", train_rows=1, vllm={"max_model_len": 64}, common={"use_cpu": meant})
    stages.Pipeline(args, ModelConfig())
    assert args.vllm == ({"max_model_len": 64} if meant else {})
    assert ("The section vllm is left out" in caplog.text) == (not meant)


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_vllm_s_arguments_on_the_command_line_without_vllm_are_refused_before_the_first_stage(monkeypatch, capsys):
    given = ["--dataset_name", "miniature/adding", "--vllm.max_model_len", "64"]
    monkeypatch.setattr("sys.argv", ["example.py", *given])
    with pytest.raises(SystemExit):
        parse_arguments(TwoStages)
    assert "vllm: vllm is not installed. Fix: pip install" in capsys.readouterr().err


def test_vllm_s_model_is_named_by_no_section():
    (fault,) = Arguments("miniature/adding", vllm={"model": "another"}).unknown_settings()
    assert fault == ("vllm", "model", "`model` is the policy of the stage that samples. Fix: leave it out.")


def test_the_section_of_vllm_is_a_section_or_null():
    assert Arguments("miniature/adding", vllm="null").vllm == {}
    with pytest.raises(ValueError, match="vllm='on', expected null; in a file, arguments of `vllm.LLM`"):
        Arguments("miniature/adding", vllm="on")


def test_an_unknown_argument_of_vllm_is_named_before_the_first_stage(monkeypatch):
    """Where vLLM is installed; here a module in its place, with the fields of its arguments."""

    @dataclass
    class EngineArgs:
        max_model_len: int | None = None

    module = ModuleType("vllm")
    module.__spec__ = ModuleSpec("vllm", None)
    module.EngineArgs = EngineArgs
    monkeypatch.setitem(sys.modules, "vllm", module)
    args = Arguments("miniature/adding", vllm={"max_model_length": 64})
    fault = "EngineArgs has no `max_model_length`; did you mean `max_model_len`?"
    assert [*args.unknown_settings()] == [("vllm", "max_model_length", fault)]


SECTIONS = [
    *(("chain_of_step", section) for section in ChainOfStepArguments.SECTIONS),
    *(("sophia", section) for section in SophiaArguments.SECTIONS),
    *(("self_evolution", section) for section in EvolutionArguments.SECTIONS),
    *((method, "common") for method in ("chain_of_step", "sophia", "self_evolution")),
]


@pytest.mark.parametrize(("method", "section"), SECTIONS, ids="-".join)
def test_an_example_names_a_misspelt_key_of_any_section_before_its_first_stage(
    method, section, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    given = yaml.safe_load((ROOT / f"configs/{method}/miniature.yaml").read_text())
    right, value = next(iter((given.get(section) or {"learning_rate": 1e-3}).items()))
    given[section] = {**given.get(section, {}), f"{right}_": value}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(given))
    with pytest.raises(SystemExit):
        train_here(monkeypatch, method, "--config", "mine.yaml", "--common.use_cpu", "true")
    error = capsys.readouterr().err
    assert error.startswith(f"mmreason train {method}: error: mine.yaml: {section}: ")
    assert error.endswith(f" no `{right}_`; did you mean `{right}`?\n")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


PUSHED = [
    ("chain_of_step", "common", {"push_to_hub": "true"}),
    ("chain_of_step", "dpo", {"push_to_hub": "true"}),
    ("sophia", "common", {"hub_model_id": "owner/all"}),
    ("sophia", "update", {"push_to_hub": "true"}),
    ("self_evolution", "evolution", {"push_to_hub": "true", "hub_model_id": "owner/evolved"}),
]


@pytest.mark.parametrize(("method", "section", "given"), PUSHED)
def test_stages_do_not_push_to_the_hub(method, section, given, tmp_path, monkeypatch, capsys):
    """Refused before the first stage, with what to do instead; false asks for nothing."""
    options = [part for name, value in given.items() for part in (f"--{section}.{name}", value)]
    recipe = ["--config", f"{method}/miniature.yaml", "--output_dir", tmp_path / "out", "--common.use_cpu", "true"]
    with pytest.raises(SystemExit) as ended:
        train_here(monkeypatch, method, *recipe, *options)
    assert ended.value.code == 2
    name = next(iter(given))
    assert capsys.readouterr().err == (
        f"mmreason train {method}: error: --{section}.{name}: `{name}` is for methods of one stage, as every stage "
        "would push its own model. Fix: leave it out, and when all is done: "
        "hf upload NAME/MODEL OUTPUT_DIR/STAGE/model\n"
    )
    assert not (tmp_path / "out").exists()


def test_a_setting_that_switches_pushing_off_is_taken(tmp_path):
    args = TwoStages("miniature/adding", common={"use_cpu": True, "bf16": False, "push_to_hub": False})
    assert list(args.unknown_settings()) == []
    assert args.config("learn", tmp_path).push_to_hub is False


def test_a_common_setting_does_not_silently_outrank_an_argument_of_the_script():
    args = SophiaArguments("miniature/adding", stages="grpo", common={"max_completion_length": 64, "logging_steps": 1})
    fault = "`max_completion_length` would outrank the one outside the sections. Fix: write it there alone"
    assert [*args.unknown_settings()] == [("common", "max_completion_length", fault)]


def test_sophia_s_prompt_of_thinking_rows_is_no_field_of_its_sampling():
    """The argument takes its place."""
    args = SophiaArguments("miniature/adding", sampling={"keep": 2, "thinking_prompt": "Think."})
    assert [fault[:2] for fault in args.unknown_settings()] == [("sampling", "thinking_prompt")]


def test_sophia_s_data_to_mix_in_are_checked_too(tmp_path):
    args = SophiaArguments("miniature/adding", mixed_in={"text": {"dataset": "rows.parquet", "shar": 0.2}})
    (fault,) = args.unknown_settings()
    assert fault == ("mixed_in.text", "shar", "there is no `shar`; did you mean `share`?")
    args = SophiaArguments("miniature/adding", mixed_in={"text": None})
    expected = "got None, expected `dataset` and `share`; --mixed_in null mixes nothing in"
    assert list(args.unknown_settings()) == [("mixed_in", "text", expected)]
    with pytest.raises(ValueError, match="^mixed_in='text', expected null; in a file, names with"):
        SophiaArguments("miniature/adding", mixed_in="text")


@pytest.mark.parametrize("size", ["8b", "38b"])
def test_sophia_s_recipes_mix_nothing_in_if_told_so(size, monkeypatch):
    """Sections 6.3 and 6.4 and appendix D; the head of the recipe says it with its ablations."""
    recipe = ROOT / f"configs/sophia/internvl3_{size}.yaml"
    assert "--mixed_in null" in recipe.read_text()
    here = {"attn_implementation": "sdpa", "grpo.use_vllm": "false", "vllm": "null", "common.report_to": "none"}
    command = ["sophia.py", "--config", str(recipe), *(part for key in here for part in (f"--{key}", here[key]))]
    shares = []
    for options in ([], ["--mixed_in", "null"]):
        monkeypatch.setattr("sys.argv", [*command, *options])
        args, _ = parse_arguments(SophiaArguments)
        shares.append({name: one["share"] for name, one in args.mixed_in.items()})
    assert shares == [{"visual": 0.2, "text": 0.2}, {}]


def test_a_merged_adapter_is_a_whole_model_with_a_card(checkpoints, tmp_path):
    base, adapter, whole = checkpoints("qwen2_5_vl"), tmp_path / "run/adapter", tmp_path / "run/model"
    lora = LoraConfig(r=4, target_modules=r".*language_model.*\.(q|v)_proj")
    settings = {"max_steps": 1, "learning_rate": 0.1, "trainer_kwargs": {"peft_config": lora}}
    trainer = adapo_trainer(base, tmp_path / "run", drawn_rows(4), **settings)
    train_once(trainer, adapter, "miniature/adding")
    save_merged(adapter, whole)
    model, _ = load(str(whole))
    adapted = trainer.model.eval().merge_and_unload()
    inputs = {"input_ids": torch.arange(5, 10)[None]}
    with torch.no_grad():
        merged, first = model.eval()(**inputs).logits, load(base)[0].eval()(**inputs).logits
        torch.testing.assert_close(merged, adapted(**inputs).logits, rtol=1e-5, atol=1e-5)
    assert (merged - first).abs().max() > 1e-3
    card = (whole / "README.md").read_text()
    assert f'pipeline("image-text-to-text", model={str(whole)!r})' in card
    assert str(adapter) not in card
    assert (whole / "trainer_state.json").read_text() == (adapter / "trainer_state.json").read_text()
