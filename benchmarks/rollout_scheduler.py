"""Parts of the rollout scheduler, side by side with what they replace, on the standard workload."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, GenerationConfig

from trl_mmreason import AdaPOConfig, AdaPOTrainer
from trl_mmreason.compat.replaced import replaced
from trl_mmreason.miniature.models import build_model

from .common import GROUP, ROOT, Result, lengths, make_questions, report, save_policy, take_turns
from .examples import WITH_VLLM, logged, print_table, run_example
from .training import ALL_ROWS, ReplayAdaPO, draw_two_turns, measure_batch, prepare, settings


class CountsPasses(ReplayAdaPO):
    """Counts the passes of a rollout batch that lead to gradients.

    Attributes:
        passes: so many since it was last set to 0.
    """

    passes = 0

    def _loss_of(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        self.passes += 1
        return super()._loss_of(model, inputs)


def micro_batches(
    *, rounds: int = 7, size: str = "study", questions: int = 4, batch: int = 4, share: float = 0.75
) -> Result:
    """Micro-batches by tokens beside those of a fixed number of rows, both of rows of similar length.

    Both train AdaPO on the same rollout batch, with answers drawn beforehand, from scoring to gradients. The bound is a
    share of the tokens of the largest micro-batch by rows. Fewer passes and a lower peak are asked for.

    Args:
        size: of the miniature model.
        questions: questions in a rollout batch, with 8 trajectories each.
        batch: trajectories in a micro-batch by rows.
        share: of the largest micro-batch by rows.
    """
    asked = make_questions(questions)
    rows = [row for row in asked for _ in range(GROUP)]
    gpu = torch.cuda.is_available()
    with TemporaryDirectory() as folder:
        save_policy(Path(folder) / "model", size)

        def trainer_of(rows_a_pass: int, most: int | None) -> CountsPasses:
            run = settings(len(rows), rows_a_pass, gradient_checkpointing=gpu, beta=0.001)
            args = AdaPOConfig(folder, **run, **ALL_ROWS, max_tokens_per_micro_batch=most)
            return CountsPasses(str(Path(folder) / "model"), args=args, train_dataset=asked)

        by_rows = trainer_of(batch, None)
        whole = lengths(len(rows), shortest=len(by_rows._followup_ids) + 2)
        answers = draw_two_turns(by_rows, whole)
        by_rows.replayed = answers
        prepare(by_rows)
        largest = max(
            each["completion_mask"].numel() + each["prompt_mask"].numel() for each in by_rows._buffered_inputs
        )
        by_tokens = trainer_of(len(rows), round(share * largest))
        by_tokens.replayed = answers
        prepare(by_tokens)
        contestants = {"by rows": by_rows, "by tokens": by_tokens}
        work = {name: partial(measure_batch, trainer, rows) for name, trainer in contestants.items()}
        seconds, measured = take_turns(work, rounds)
    peaks = {name: [mebibytes for _, mebibytes in each] for name, each in measured.items()}
    passes = {name: trainer.passes / (rounds + 2) for name, trainer in contestants.items()}
    ratio = report(seconds, "by tokens", "by rows", title="a rollout batch")
    most = {name: median(each) for name, each in peaks.items()}
    for name in contestants:
        print(f"{name}: {passes[name]:.0f} passes, {most[name]:.0f} MiB at most")
    result = Result({"seconds": seconds, "mebibytes": peaks, "passes": passes})
    result.check(ratio <= 1.05, f"It takes {ratio:.2f} of the time.")
    result.check(passes["by tokens"] < passes["by rows"], "It makes no fewer passes.")
    result.check(most["by tokens"] < most["by rows"], "It holds no less memory.")
    return result


def reference_pass(*, rounds: int = 5, rows: int = 8, tokens: int = 256) -> Result:
    """Old and reference log-probabilities of a LoRA policy in one pass of twice the rows, beside two passes.

    The reference is the policy without its adapter; PEFT computes both in one batch where each row names its adapter.

    Args:
        rows: of a pass by itself.
        tokens: of each row.
    """
    model, processor = build_model("qwen2_5_vl", "study")
    lora = LoraConfig(r=16, target_modules="all-linear", init_lora_weights=False)
    policy = get_peft_model(model.get_decoder(), lora).eval()
    ids = torch.randint(0, len(processor.tokenizer), (rows, tokens), generator=torch.Generator().manual_seed(0))

    @torch.no_grad()
    def two_passes() -> torch.Tensor:
        own = policy(input_ids=ids).last_hidden_state
        with policy.disable_adapter():
            return torch.cat([own, policy(input_ids=ids).last_hidden_state])

    @torch.no_grad()
    def one_pass() -> torch.Tensor:
        names = ["default"] * rows + ["__base__"] * rows
        return policy(input_ids=torch.cat([ids, ids]), adapter_names=names).last_hidden_state

    seconds, found = take_turns({"one pass": one_pass, "two passes": two_passes}, rounds)
    ratio = report(seconds, "one pass", "two passes", title="old and reference")
    result = Result({"seconds": seconds, "ratio": ratio})
    torch.testing.assert_close(found["one pass"][0], found["two passes"][0], atol=1e-4, rtol=0)
    return result


def oversampling(
    *,
    rows: tuple[int, ...] = (32, 64),
    shares: tuple[float, ...] = (0.5, 1.0),
    rollouts: int = 8,
    mean: int = 32,
    longest: int = 256,
) -> Result:
    """Rollouts that leave their longest answers for the next, beside those that wait for all; needs vLLM.

    AdaPO with a colocated vLLM, two turns a row, at learning rate 0. A random policy ends each turn with the same
    probability at every token, so that lengths are geometric. Steps of the engine are what a GPU takes time for, as its
    step hardly depends on how many rows it has; on CPUs it does. 1.4 times the rows a step are asked for.

    Args:
        rows: trajectories that an update takes.
        shares: values of `oversampling`.
        rollouts: that are measured, behind two which fill the engine.
        mean: tokens of a turn, about.
        longest: `max_completion_length`.
    """
    sys.path.append(str(ROOT / "tests" / "engines"))
    from vllm_cpu import let_cpus_take_vllm

    let_cpus_take_vllm()
    numbers: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        policy = str(Path(folder) / "model")
        save_policy(Path(policy), "study")
        generation = GenerationConfig.from_pretrained(policy)
        tokens = AutoConfig.from_pretrained(policy).get_text_config().vocab_size
        generation.eos_token_id = [*range(tokens - tokens // mean, tokens)]
        generation.save_pretrained(policy)
        for count in rows:
            for share in (0.0, *shares):
                numbers[f"{count} rows, oversampling {share:g}"] = _rollouts_with(
                    policy, folder, count, share, rollouts, longest
                )
    result = Result(numbers)
    print("| rows, oversampling | rows a second | rows a step of the engine | older tokens |\n|---|---|---|---|")
    for name, found in numbers.items():
        waits = numbers[name.partition(",")[0] + ", oversampling 0"]
        gains = {key: found[key] / waits[key] for key in ("a second", "a step")}
        print(f"| {name} | × {gains['a second']:.2f} | × {gains['a step']:.2f} | {found['older']:.0%} |")
        if found is not waits:
            result.check(gains["a step"] >= 1.4, f"{name}: {gains['a step']:.2f} times the rows a step.")
    return result


def _rollouts_with(policy: str, folder: str, rows: int, share: float, rollouts: int, longest: int) -> dict[str, float]:
    """Rows a second and a step of the engine, and the share of tokens of older weights."""
    run = settings(rows, rows, use_vllm=True, top_p=1.0, vllm_max_model_length=1024, max_completion_length=longest)
    run |= {"max_steps": rollouts + 2, "logging_steps": 1, "oversampling": share}
    run |= {"vllm_gpu_memory_utilization": 0.2} if torch.cuda.is_available() else {}
    asked = make_questions(rows // GROUP * (rollouts + 2))
    trainer = AdaPOTrainer(policy, args=AdaPOConfig(folder, **run, **ALL_ROWS), train_dataset=asked)
    engine, roll_out, steps = trainer.vllm_generation.llm.llm_engine, trainer._generate_and_score_completions, [0]
    step = engine.step

    def counted() -> Any:
        steps[-1] += 1
        return step()

    def rolled_out(inputs: Any) -> Any:
        steps.append(0)
        return roll_out(inputs)

    with replaced(engine, step=counted), replaced(trainer, _generate_and_score_completions=rolled_out):
        prepare(trainer)
    sampling = [each for each in trainer.state.log_history if "time/generation" in each][2:]
    older = fmean(each.get("oversampling/older_tokens", 0.0) for each in sampling)
    seconds = sum(each["time/generation"] for each in sampling)
    count = rows * len(sampling)
    return {"a second": count / seconds, "a step": count / sum(steps[3:]), "older": older}


def curves(
    *,
    seeds: tuple[int, ...] = (80, 81, 82, 83, 84),
    share: float = 0.5,
    steps: int = 100,
    workers: int = 1,
    output_dir: Path = ROOT / "runs" / "older_answers",
) -> Result:
    """Whether the quickstart's task is learned as well from answers of older weights; needs vLLM.

    AdaPO's example is trained with a colocated vLLM, waiting for all answers ("in turn") and with `oversampling`, and
    with a server and `generate_ahead`, for as many updates from one cold start. The accuracies after it have to lie
    within the 95 % intervals of the run in turn.

    Args:
        seeds: of cold start, questions and sampling.
        share: `oversampling`.
        steps: updates of each run.
        workers: seeds that run at once.
        output_dir: where runs are kept.
    """
    sys.path += [str(ROOT / "tests" / folder) for folder in ("engines", "helpers")]
    with ThreadPoolExecutor(workers) as pool:
        found = pool.map(lambda seed: _older_answers(seed, share, steps, output_dir.resolve()), seeds)
        runs = dict(zip(seeds, found, strict=True))
    rows = {f"{seed}, {name}": each for seed, run in runs.items() for name, each in run.items()}
    within = {
        f"{seed}, {name}": run["in turn"]["acc_t2 after"].interval[0]
        <= each["acc_t2 after"].value
        <= run["in turn"]["acc_t2 after"].interval[1]
        for seed, run in runs.items()
        for name, each in run.items()
    }
    print_table(rows, within, "within the intervals of the run in turn")
    gains = {
        name: [run[name]["acc_t2 after"].value - run["in turn"]["acc_t2 after"].value for run in runs.values()]
        for name in ("oversampling", "ahead")
    }
    older = [fmean(logged(output_dir / f"{seed}_oversampling", "oversampling/older_tokens")) for seed in seeds]
    for name, each in gains.items():
        print(f"acc@t2, {name} less in turn: {fmean(each):+.1%} in the mean")
    print(f"older tokens with oversampling: {fmean(older):.0%}")
    result = Result({"gains": gains, "older": older})
    result.check(all(within.values()), "An accuracy lies outside the intervals of the run in turn.")
    return result


def _older_answers(seed: int, share: float, steps: int, output_dir: Path) -> dict[str, Any]:
    """The accuracies of a seed's three runs."""
    from policy_server import Server
    from processes import free_port

    common = ["--use_vllm", "true", "--logging_steps", "1", "--max_steps", str(steps)]
    colocated = [*common, "--vllm_mode", "colocate", "--vllm_max_model_length", "512", "--cold_start_accuracy", "0.3"]
    found: dict[str, Any] = {}

    def run(name: str, options: list[str]) -> Path:
        folder = output_dir / f"{seed}_{name}"
        found[name] = run_example("adapo", seed, folder, options, launcher=["-c", WITH_VLLM])
        return folder

    (start,) = (run("in turn", colocated) / "cold_start").iterdir()
    from_start = ["--model_name_or_path", str(start)]
    run("oversampling", [*colocated, *from_start, "--oversampling", str(share)])
    with Server(str(start), output_dir / f"{seed}_server.txt", "--max-num-seqs", "128") as address:
        served = ["--vllm_mode", "server", "--vllm_server_base_url", address, "--vllm_group_port", str(free_port())]
        run("ahead", [*common, *from_start, *served, "--generate_ahead", "true"])
    return found


def refill(
    *,
    seeds: tuple[int, ...] = (70, 71, 72),
    attempts: int = 3,
    steps: int = 60,
    workers: int = 1,
    output_dir: Path = ROOT / "runs" / "refill",
) -> Result:
    """Whether groups that teach nothing are better refilled than dropped, for the same number of tokens.

    AdaPO's example is trained on the miniature, dropping; then with refill, until as many tokens have been through
    rollouts. The mean of acc@t2 over the seeds has to be at least that of dropping.

    Args:
        seeds: of cold start, questions and sampling.
        attempts: `refill_attempts`.
        steps: updates of the run that drops.
        workers: seeds that run at once.
        output_dir: where runs are kept.
    """

    def compare(seed: int) -> dict[str, Any]:
        folders = {name: output_dir / f"{seed}_{name}" for name in ("dropped", "tried", "refilled")}
        common = ["--logging_steps", "1", "--cold_start_accuracy", "0.3"]
        refilling = [*common, "--refill_attempts", str(attempts)]
        found = {"dropped": run_example("adapo", seed, folders["dropped"], [*common, "--max_steps", str(steps)])}
        run_example("adapo", seed, folders["tried"], [*refilling, "--max_steps", str(steps)])
        budget = logged(folders["dropped"], "num_tokens")[-1]
        fewer = sum(tokens <= budget for tokens in logged(folders["tried"], "num_tokens"))
        found["refilled"] = run_example("adapo", seed, folders["refilled"], [*refilling, "--max_steps", str(fewer)])
        tried = logged(folders["refilled"], "refill/attempts")
        print(f"seed {seed}: {steps} updates, {fewer} with refill; {sum(tried) / len(tried):.2f} attempts in the mean")
        return found

    with ThreadPoolExecutor(workers) as pool:
        runs = dict(zip(seeds, pool.map(compare, seeds), strict=True))
    rows = {f"{seed} {name}": found for seed, run in runs.items() for name, found in run.items()}
    accuracies = {
        seed: {name: found["acc_t2 after"].value for name, found in run.items()} for seed, run in runs.items()
    }
    gains = {seed: found["refilled"] - found["dropped"] for seed, found in accuracies.items()}
    print_table(rows, {row: gains[int(row.split()[0])] > 0 for row in rows}, "refill is better")
    mean = fmean(gains.values())
    by_seed = ", ".join(f"{gain:+.1%}" for gain in gains.values())
    print(f"acc@t2 with refill less that without: {mean:+.1%}; by seed {by_seed}")
    result = Result({"gains": gains})
    result.check(mean >= 0, f"Refill ends {-mean:.1%} lower for the same tokens.")
    return result
