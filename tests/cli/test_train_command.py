"""`mmreason train`: the example of a method, from this checkout and from a wheel installed without it."""

import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from importlib.util import find_spec

import pytest
import torch
from example_runs import ACCELERATE, ROOT, train_here
from support import full_but
from transformers.integrations import is_deepspeed_zero3_enabled

from trl_mmreason.cli.commands.train import SCRIPTS
from trl_mmreason.cli.main import main
from trl_mmreason.scripts.recipes import config_file, configs, read_config

LOST = "--config adapo/lost.yaml: there is no such file, and no recipe of that name; there are adapo/miniature.yaml, "
SHORT = {"use_cpu": "true", "max_steps": 1, "train_rows": 16, "eval_rows": 4, "per_device_train_batch_size": 16}
SHORT["learning_rate"] = 0  # a random policy earns nothing, which would be an error


def run(command, folder, **environment):
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        list(map(str, command)), cwd=folder, env=variables, capture_output=True, text=True, check=False
    )


def flags(settings):
    return [str(part) for name, value in settings.items() for part in (f"--{name}", value)]


def test_every_method_has_a_script():
    # `mmreason evaluate`, to be copied, which prepare rows
    others = {"evaluate", "custom_reward", "pretrained", "pretrained_images"}
    assert set(SCRIPTS) == {path.stem for path in ROOT.glob("examples/*.py")} - others
    assert all((ROOT / f"examples/{method}.py").is_file() and configs(method) for method in SCRIPTS)


def test_a_recipe_is_found_by_its_name_and_a_file_of_one_s_own_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = ROOT / "configs/adapo/miniature.yaml"
    assert config_file("adapo/miniature.yaml") == shipped
    own = tmp_path / "adapo/miniature.yaml"
    own.parent.mkdir()
    own.write_text("seed: 1")
    assert config_file("adapo/miniature.yaml").resolve() == own
    assert config_file(str(shipped)) == shipped


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--config", "adapo/lost.yaml"], LOST),
        (["--config=adapo/lost.yaml"], LOST),
        (["--rate", "1"], "there is no `--rate`"),
        (["--lerning_rate", "1"], "there is no `--lerning_rate`; did you mean `--learning_rate`?"),
        (["--lerning_rate=1"], "there is no `--lerning_rate`; did you mean `--learning_rate`?"),
        (["--max_steps", "few"], "argument --max_steps/--max-steps: invalid int value: 'few'"),
        (["--kl_scale", "-1"], "AdaPOConfig: kl_scale=-1.0 is out of range, expected kl_scale >= 0."),
    ],
)
def test_what_is_refused_ends_in_a_line(options, message, monkeypatch, capsys):
    recipe = [] if "lost" in str(options) else ["--config", "adapo/miniature.yaml", "--use_cpu", "true"]
    with pytest.raises(SystemExit) as ended:
        train_here(monkeypatch, "adapo", *recipe, *options)
    assert ended.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mmreason train adapo: error:")]
    assert message in line


def assert_refused(monkeypatch, capsys, method, options, message):
    with pytest.raises(SystemExit) as ended:
        train_here(monkeypatch, method, *options)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"mmreason train {method}: error: {message}\n" in said
    return ended


@pytest.mark.parametrize("method", ["adapo", "sophia"])
def test_a_misspelt_key_of_a_file_is_named_with_the_nearest(method, tmp_path, monkeypatch, capsys):
    file = tmp_path / "mine.yaml"
    file.write_text(f"{config_file(f'{method}/miniature.yaml').read_text()}\ndataset_nme: x\n")
    message = f"{file}: there is no `dataset_nme`; did you mean `dataset_name`?"
    assert_refused(monkeypatch, capsys, method, ["--config", file], message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_steps: 2.5", "FILE: max_steps: 2.5, expected a whole number"),
        ("max_steps: null", "FILE: max_steps: null, expected a whole number"),
        ("use_cpu: 'true'\nbf16: 1", "FILE: bf16: 1, expected true or false or null"),
        ("learning_rate: [1]", "FILE: learning_rate: [1], expected a number"),
        ("save_strategy: no", "FILE: save_strategy: false, expected a string. Fix: put it in quotes"),
        ("reward_weights: [a]", 'FILE: reward_weights: ["a"], expected a list or null'),
        ("max_steps: 2\nmax_steps: 3", "FILE is not YAML: `max_steps` comes twice, in lines 1 and 2"),
        ("", "FILE is not a configuration: expected lines of the form `name: value`"),
        ("- max_steps", "FILE is not a configuration: expected lines of the form `name: value`"),
        ("a:\n\tb: 1", "FILE is not YAML: while scanning for the next token found character"),
    ],
)
def test_a_file_that_is_no_configuration_or_has_other_types_is_refused(text, message, tmp_path, monkeypatch, capsys):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(SystemExit):
        train_here(monkeypatch, "adapo", "--config", file)
    assert f"mmreason train adapo: error: {message}".replace("FILE", str(file)) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wanted", "nearest"),
    [("mine.yml", "mine.yaml"), ("runs/mine.yml", "runs/my.yaml"), ("adapo/mini.yaml", "adapo/m")],
)
def test_a_configuration_beside_the_one_that_was_meant_is_named(wanted, nearest, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for file in ("mine.yaml", "runs/my.yaml", "runs/other.yaml"):
        (tmp_path / file).touch()
    expected = f"--config {wanted}: there is no such file, and no recipe of that name; did you mean `{nearest}"
    with pytest.raises(FileNotFoundError) as refused:
        config_file(wanted)
    assert str(refused.value).startswith(expected)


def test_a_lost_configuration_is_refused_before_heavy_imports():
    program = (
        "import sys; from trl_mmreason.cli.main import main\n"
        "try: main(['train', 'adapo', '--config=adapo/lost.yaml'])\n"
        "finally: print(sorted({'torch', 'transformers', 'datasets', 'trl'} & set(sys.modules)))"
    )
    done = run([sys.executable, "-c", program], ROOT)
    assert (done.returncode, done.stdout) == (2, "[]\n")
    assert LOST in done.stderr


@pytest.mark.parametrize("options", [["adapo/miniature.yaml"], ["adapo/miniature.yaml", "--seed", "1"]])
def test_a_file_without_its_option_is_recognised(options, monkeypatch, capsys):
    message = "got 'adapo/miniature.yaml' without an option; did you mean --config adapo/miniature.yaml?"
    assert_refused(monkeypatch, capsys, "adapo", options, message)


def test_a_method_without_arguments_names_a_recipe(monkeypatch, capsys):
    message = "the following arguments are required: --dataset_name/--dataset-name; or give --config FILE, such as "
    assert_refused(monkeypatch, capsys, "adapo", [], f"{message}adapo/miniature.yaml")


ON_CPU = ["--use_cpu", "true", "--bf16", "false", "--report_to", "none"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--use_vllm", "true"],
            'use_vllm: vllm is not installed. Fix: pip install "trl-mmreason[vllm]", or --use_vllm f',
        ),
        (
            ["--attn_implementation", "flash_attention_2"],
            "attn_implementation: flash_attn is not installed. Fix: pip install flash-attn, or --attn_implementation s",
        ),
        (
            ["--report_to", "tensorboard"],
            "report_to: tensorboard is not installed. Fix: pip install tensorboard, or --report_to none",
        ),
    ],
)
def test_a_missing_package_is_named_before_anything_is_loaded(options, message, monkeypatch, capsys):
    monkeypatch.setattr("trl_mmreason.compat.packages.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="^2$"):
        train_here(monkeypatch, "adapo", "--config", "adapo/miniature.yaml", *ON_CPU, *options)
    assert f"mmreason train adapo: error: {message}" in capsys.readouterr().err


@pytest.mark.skipif(find_spec("deepspeed") is not None, reason="DeepSpeed is installed")
def test_missing_deepspeed_is_named_in_a_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "ds.json").write_text("{}")
    options = ["--config", "adapo/miniature.yaml", *ON_CPU, "--deepspeed", tmp_path / "ds.json"]
    message = (
        'deepspeed: deepspeed is not installed. Fix: pip install "trl-mmreason[deepspeed]", or leave --deepspeed out'
    )
    ended = assert_refused(monkeypatch, capsys, "adapo", options, message)
    assert not is_deepspeed_zero3_enabled(), ended  # models that are loaded afterwards ask for it


def test_a_missing_package_of_a_section_is_named_with_its_option(monkeypatch, capsys):
    monkeypatch.setattr("trl_mmreason.compat.packages.find_spec", lambda name: None)
    options = ["--config", "sophia/miniature.yaml", "--common.report_to", "none", "--grpo.use_vllm", "true"]
    message = 'use_vllm: vllm is not installed. Fix: pip install "trl-mmreason[vllm]", or --grpo.use_vllm false'
    assert_refused(monkeypatch, capsys, "sophia", options, message)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_training_without_a_gpu_names_the_options(monkeypatch, capsys):
    message = "bf16 asks for a GPU, and there is none. Fix: --use_cpu true --bf16 false"
    options = ["--config", "adapo/miniature.yaml", "--bf16", "true", "--use_cpu", "false"]
    assert_refused(monkeypatch, capsys, "adapo", options, message)


def test_a_misspelt_option_is_named_before_what_the_machine_lacks(monkeypatch, capsys):
    """On a machine without a GPU this configuration is refused for bf16."""
    message = "there is no `--lerning_rate`; did you mean `--learning_rate`?"
    options = ["--config", "adapo/miniature.yaml", "--bf16", "true", "--use_cpu", "false", "--lerning_rate", "1"]
    assert_refused(monkeypatch, capsys, "adapo", options, message)


def test_without_a_method_the_methods_are_listed(capsys):
    with pytest.raises(SystemExit, match="^2$"):
        main(["train"])
    said = capsys.readouterr().err
    assert all(f"  {method} " in said for method in SCRIPTS)


def test_a_section_that_is_not_there_is_refused_in_a_line(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        train_here(monkeypatch, "sophia", "--config", "sophia/miniature.yaml", "--nothing.rate", "1")
    message = "there is no `--nothing.rate`; expected a field, or --SECTION.NAME VALUE"
    assert f"mmreason train sophia: error: {message}" in capsys.readouterr().err


def test_a_data_set_that_is_not_there_is_refused_in_a_line(monkeypatch, tmp_path):
    source = ["--dataset_name", "lost.jsonl", "--output_dir", tmp_path, "--use_cpu", "true"]
    with pytest.raises(SystemExit, match=r"^mmreason train adapo: .*lost\.jsonl"):
        train_here(monkeypatch, "adapo", "--config", "adapo/miniature.yaml", *source)


HELP = [
    *("it answers, checks its answer and answers again", "\nAdaPOConfig:", "--k_01", "--filter_truncated"),
    *("\nRolloutConfig:", "--vllm_dtype", "\nDataArguments:", "--dataset_name"),
    *("\ninherited from TRL and transformers:", "--weight_decay", "--lora_r", "--config adapo/miniature.yaml --seed 1"),
]


def assert_in_order(text, parts):
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


@pytest.mark.parametrize("method", full_but("adapo", ["grpo", "sft", "chain_of_step", "self_evolution"]))
def test_help_has_about_forty_arguments_in_the_order_of_the_recipe(method, monkeypatch, capsys):
    """Of a method without `your_model.yaml`, those of all its recipes."""
    with pytest.raises(SystemExit, match="^0$"):
        train_here(monkeypatch, method, "--help")
    said = capsys.readouterr().out
    assert said.startswith(f"usage: mmreason train {method} [--config FILE]")
    options = re.findall(r"^  --(\w[\w-]*)", said, re.MULTILINE)
    assert 20 < len(options) < 55
    recipe = f"{method}/your_model.yaml" if f"{method}/your_model.yaml" in configs(method) else configs(method)[0]
    assert options[: len(keys := list(read_config(recipe)))] == keys
    assert options[-1] == "help-all"
    assert f"--config {configs(method)[0]}" in said


def test_help_all_has_the_method_first_then_what_is_shared_then_what_is_inherited(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        train_here(monkeypatch, "adapo", "--help-all")
    said = capsys.readouterr().out
    assert said.startswith("usage: mmreason train adapo [--config FILE]")
    assert_in_order(said, HELP)


@pytest.mark.full
def test_a_script_has_the_same_help(tmp_path):
    done = run([sys.executable, ROOT / "examples/adapo.py", "--help-all"], tmp_path)
    assert done.stdout.startswith("usage: adapo.py [--config FILE]")
    assert_in_order(done.stdout, HELP)


def test_help_all_of_stages_has_the_method_s_sections_first(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        train_here(monkeypatch, "self_evolution", "--help-all")
    classes = ["\nEvolutionArguments:", "\nStagedArguments:", "\nDataArguments:", "\ninherited"]
    assert_in_order(capsys.readouterr().out, classes)


@pytest.mark.parametrize(
    ("method", "source", "beginning", "end"),
    [
        ("sophia", "by default the paper's (Fig. A4). ", "You are an expert mathematician", "Multi-angle Analysis"),
        ("srpo", "by default the paper's (B.3), `None` leaves", "Solve the user's question step by step.", "self-refl"),
    ],
)
def test_help_all_says_where_a_default_prompt_is_from_and_how_it_begins(
    method, source, beginning, end, monkeypatch, capsys
):
    with pytest.raises(SystemExit):
        train_here(monkeypatch, method, "--help-all")
    shown = " ".join(capsys.readouterr().out.split())
    assert source in shown
    assert f"(default: {beginning}" in shown
    assert end not in shown


def test_help_names_every_method_and_the_line_for_all_gpus(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    said = capsys.readouterr().out
    assert all(f"  {method} " in said for method in SCRIPTS)
    assert "accelerate launch -m trl_mmreason.cli.main train adapo --config " in said


@pytest.mark.full
def test_it_trains_under_accelerate(checkpoints, tmp_path):
    launcher = [*ACCELERATE, "--num_processes", "1", "--num_machines", "1", "--mixed_precision", "no"]
    launcher += ["--dynamo_backend", "no", "-m", "trl_mmreason.cli.main", "train"]
    settings = {"model_name_or_path": checkpoints("qwen2_5_vl"), "output_dir": tmp_path / "out", **SHORT}
    done = run([*launcher, "adapo", "--config", "adapo/miniature.yaml", *flags(settings)], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((tmp_path / "out/trainer_state.json").read_text())["global_step"] == 1
    # in the report, so that it can be run again
    assert "mmreason train adapo --config adapo/miniature.yaml --model_name_or_path" in (
        (tmp_path / "out/report.html").read_text()
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel, built from a copy of what git knows, with this environment's setuptools."""
    root = tmp_path_factory.mktemp("wheel")
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True)
    for name in files.stdout.decode().splitlines():
        if not name.startswith(("tests/", "study/", "docs/", "benchmarks/")) and (ROOT / name).is_file():
            (root / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (root / "source" / name).write_bytes((ROOT / name).read_bytes())
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", root]
    done = run([*build, root / "source"], root)
    assert done.returncode == 0, done.stderr[-3000:]
    (built,) = root.glob("*.whl")
    return built


@pytest.mark.full
def test_the_wheel_holds_scripts_recipes_and_tested_versions(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = [*ROOT.glob("examples/*.py"), *ROOT.glob("configs/*/*.yaml"), *ROOT.glob("constraints*.txt")]
    expected = {f"trl_mmreason/_recipes/{path.relative_to(ROOT)}" for path in shipped if path.parent.name != "study"}
    assert expected <= names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"trl_mmreason"}


@pytest.mark.full
def test_an_installed_wheel_trains_without_a_checkout(wheel, checkpoints, tmp_path):
    """In an environment of its own, which borrows this one's packages but for ours."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv/bin/python"
    (packages,) = (tmp_path / "venv/lib").glob("python3*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    (borrowed,) = {path for path in sys.path if path.endswith("site-packages")}
    settings = {"model_name_or_path": checkpoints("qwen2_5_vl"), "output_dir": tmp_path / "out", **SHORT}
    command = [
        python,
        "-m",
        "trl_mmreason.cli.main",
        "train",
        "adapo",
        "--config",
        "adapo/miniature.yaml",
        *flags(settings),
    ]
    done = run(command, tmp_path, PYTHONPATH=f"{packages}:{borrowed}")
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "out/report.html").is_file()
    where = [python, "-c", "from trl_mmreason.scripts.recipes import ROOT; print(ROOT)"]
    assert (
        run(where, tmp_path, PYTHONPATH=f"{packages}:{borrowed}").stdout.strip() == f"{packages}/trl_mmreason/_recipes"
    )
