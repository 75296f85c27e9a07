"""Which files of an output folder and of a checkpoint a push takes."""

from trl_mmreason.training.pushing import pushed_files

MODEL = {
    *("config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json", "README.md"),
    *("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"),
    *("adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.json"),
    *("merges.txt", "spiece.model", "chat_template.jinja", "modeling_own.py", "training_args.bin"),
    *("trainer_state.json", "facts.json", "runs/Jan01/events.out.tfevents.1"),
}
RESUMED_FROM = {
    *("_files.json", "optimizer.pt", "scheduler.pt", "rng_state_0.pth", "latest", "reference.pt"),
    *("global_step3/mp_rank_00.pt", "optimizer_0/__0_0.distcp", "pytorch_model_fsdp_0/.metadata"),
}
KEPT = {
    *("training.html", "report.html", "rounds.sqlite", "stages.sqlite", "_run.sqlite", "rows.json", "anything.parquet"),
    *(
        "completions/completions_00001.parquet",
        "_questions/1.png",
        "evaluation/before/samples.jsonl",
        "cold_start/a.json",
    ),
    *("round-1/policy/model.safetensors", "round-1/checkpoint-1/optimizer.pt", "_reference/model.safetensors"),
    *("rollouts_0_of_1.pt", "1.png"),
}


def written(folder):
    for name in (*MODEL, *RESUMED_FROM, *KEPT):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def test_a_push_takes_the_files_of_the_model_alone(tmp_path):
    assert set(pushed_files(written(tmp_path / "out"))) == MODEL


def test_a_pushed_checkpoint_has_what_a_run_resumes_from_and_no_rollouts(tmp_path):
    assert set(pushed_files(written(tmp_path / "checkpoint-3"))) == MODEL | RESUMED_FROM
