"""Run a part of the study: train and evaluate every arm of every seed once, in parallel, resumable.

In OUTPUT/seed-0 there is `cold_start`, the policy after its supervised start, what else the arms of a seed share, and
a folder for each arm:

    model/        what training left, with `trainer_state.json`; `before` has none
    evaluation/   an evaluation as `mmreason evaluate` writes it, with its report
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from datasets import Dataset
from filelock import FileLock
from tqdm.auto import tqdm

from trl_mmreason.data.folders import write_whole
from trl_mmreason.evaluation.evaluation_report import evaluate_into
from trl_mmreason.evaluation.files import read_evaluation
from trl_mmreason.evaluation.question_table import QuestionTable
from trl_mmreason.generation import SamplingParams
from trl_mmreason.generation.protocols import AnsweringProtocol
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.miniature.lessons import Lessons
from trl_mmreason.miniature.models import FAMILIES, SIZES, build_model
from trl_mmreason.miniature.tasks import CATEGORIES, LEVELS, Problem, make_problems, problems_dataset
from trl_mmreason.scripts.cold_start import cold_start
from trl_mmreason.scripts.sections import values_of
from trl_mmreason.scripts.stages import do_once
from trl_mmreason.training.documented import documented

from .claims import Claim, Judged
from .intervals import Rule

_BATCH = 256  # answers at a time

BEFORE = "before"
"""The arm that is not trained: the policy that all others begin with."""

_OF, _EVALUATION = "of", "evaluation"
"""What the study itself reads of an arm's settings: the arm that it is made of, and how else it is measured."""

_STREAMS = 6
"""A seed's problems are drawn with the seed and the numbers behind it, so many in all."""

_TAUGHT_BY = ("family", "size", "tasks", "first_answers", "cold_start_accuracy", "cold_start_rows")
"""The arguments that the policy of a seed depends on."""

_TRAINED_BY = (*_TAUGHT_BY, "train_rows", "common", "rl", "sft", "dpo", "prepared")
"""The arguments that a trained arm depends on."""


@documented
@dataclass
class StudyArguments:
    """Arms, seeds and data of a part of the study.

    Attributes:
        part: which part of the study, of `PARTS`.
        output_dir: output folder.
        seeds: each is a run of its own: another policy, other problems, other answers. Six or more apart.
        family, size: family and size of the miniature policy.
        tasks: categories of the drawn problems, and the level of each.
        first_answers: how the policy is taught to answer at first, in parts with second answers: "quick" is at a
            glance, without a working that second ones may have, so that to check is easier than to answer; "long" (of
            part 2) is in words every second time, so that lengths differ.
        cold_start_accuracy: share of right first answers at which the supervised start ends.
        cold_start_rows: problems that the supervised start sees.
        train_rows, eval_rows: problems to learn from, and new images to measure on.
        arms: name → settings in which an arm differs from the part's sections. With `of`, it is made of another arm,
            when that one is done; with `evaluation`, it is measured in another way.
        common: settings of every trainer.
        rl, sft, dpo: settings of arms that learn by reinforcement (rl), from examples (sft), and from pairs (dpo).
        prepared: settings of what the arms of a seed share, and the part makes before them.
        evaluation: fields of `SamplingParams`, and `n`.
        decide: seeds are added until these `claims` are decided: the interval of each lies above 0, below 0, or within
            ± `margin` (a share), or there are `most` seeds. The first look is after `least` seeds, and another after
            each further one; intervals are those of repeated looks (`intervals.py`). Without it the seeds are those of
            `seeds`, looked at once.
        workers: arms that are trained at a time, each in a process of its own.
        only: "seed/arm": do this one here.
    """

    part: str = ""
    output_dir: str = "runs/study"
    seeds: list[int] = field(default_factory=lambda: [0, 10, 20])
    family: str = "qwen2_5_vl"
    size: str = "demo"
    tasks: dict[str, int] = field(default_factory=lambda: {"adding": 1})
    first_answers: str = "worked"
    cold_start_accuracy: float = 0.5
    cold_start_rows: int = 3000
    train_rows: int = 2000
    eval_rows: int = 400
    arms: dict = field(default_factory=dict)
    common: dict = field(default_factory=dict)
    rl: dict = field(default_factory=dict)
    sft: dict = field(default_factory=dict)
    dpo: dict = field(default_factory=dict)
    prepared: dict = field(default_factory=dict)
    evaluation: dict = field(default_factory=dict)
    decide: dict = field(default_factory=dict)
    workers: int = 2
    only: str | None = None

    def __post_init__(self) -> None:
        for section in ("common", "rl", "sft", "dpo", "prepared", "evaluation"):
            setattr(self, section, values_of(getattr(self, section)))
        self.arms = {name: values_of(settings or {}) for name, settings in self.arms.items()}
        known = bool(self.tasks) and set(self.tasks) <= set(CATEGORIES) and set(self.tasks.values()) <= set(LEVELS)
        if not known or self.family not in FAMILIES or self.size not in SIZES or self.workers < 1:
            raise ValueError(
                f"StudyArguments: got tasks={self.tasks}, family={self.family!r}, size={self.size!r} and "
                f"workers={self.workers}; expected tasks of {CATEGORIES} with a level of {LEVELS}, a family of "
                f"{sorted(FAMILIES)}, a size of {sorted(SIZES)} and at least one worker."
            )
        ordered = sorted(self.seeds)
        near = any(later - seed < _STREAMS for seed, later in zip(ordered, ordered[1:], strict=False))
        if near or not self.seeds:
            raise ValueError(
                f"StudyArguments: got seeds={self.seeds}; expected one or more, {_STREAMS} or more apart: nearer ones "
                "share images, and the intervals take seeds for independent."
            )
        if BEFORE in self.arms:
            raise ValueError(f"StudyArguments: {BEFORE!r} is the initial policy; give the arm another name.")
        in_waves(self.arms)
        self.decide = values_of(self.decide)
        if self.decide and self.decide.keys() != {"claims", "margin", "least", "most"}:
            raise ValueError(f"StudyArguments: got decide={self.decide}; expected claims, margin, least and most.")
        if self.decide and not (2 <= self.decide["least"] <= self.decide["most"] >= len(self.seeds)):
            raise ValueError(
                f"StudyArguments: got {len(self.seeds)} seeds, and decide with least={self.decide['least']} and "
                f"most={self.decide['most']}; expected 2 ≤ least ≤ most, and no more than most seeds."
            )

    @property
    def rule(self) -> Rule:
        """When seeds are looked at."""
        return (
            Rule(self.decide["least"], self.decide["most"]) if self.decide else Rule(len(self.seeds), len(self.seeds))
        )

    def margin(self, claim: Claim) -> float | None:
        """Return the difference that counts as none, for a claim in `decide`; `None` for another."""
        return self.decide["margin"] if self.decide and claim.text in self.decide["claims"] else None

    def needs_another_seed(self, judged: Sequence[Judged]) -> bool:
        """Whether a claim in `decide` is undecided; never once there are `most` seeds."""
        if not self.decide or len(self.seeds) >= self.decide["most"]:
            return False
        return any(each.margin is not None and each.verdict == "undecided" for each in judged)

    def with_another_seed(self) -> StudyArguments:
        """The same study with one more seed, ten after the last."""
        return replace(self, seeds=[*self.seeds, self.seeds[-1] + 10])

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that results depend on: all except output, parallelism, and the rule for the last seed."""
        apart = ("output_dir", "decide", "workers", "only")
        return {name: value for name, value in asdict(self).items() if name not in apart}


def in_waves(arms: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Arms in order of dependence: `BEFORE`, the arms made of it, those made of these, and so on.

    Args:
        arms: name → settings.

    Returns:
        Waves; each needs the ones before it, and has its arms in their order.

    Raises:
        ValueError: an arm's source is no arm, or depends on the arm itself.
    """
    waves, left = [[BEFORE]], dict(arms)
    while left:
        there = [BEFORE, *(arm for arm in arms if arm not in left)]
        wave = [arm for arm, settings in left.items() if settings.get(_OF, BEFORE) in there]
        if not wave:
            arm, settings = next(iter(left.items()))
            raise ValueError(f"StudyArguments: {arm!r} is of {settings[_OF]!r}, expected one of {there}.")
        waves.append(wave)
        for arm in wave:
            del left[arm]
    return waves


@dataclass(frozen=True)
class Start:
    """The common start of a seed's arms.

    Attributes:
        args: arguments of the study.
        seed: seed of this run.
        folder: folder of this seed.
        policy: path of the policy after its supervised start.
        train, evaluation: rows of the problems.
    """

    args: StudyArguments
    seed: int
    folder: Path
    policy: str
    train: Dataset
    evaluation: Dataset

    def of(self, section: str, differences: Mapping[str, Any]) -> dict[str, Any]:
        """A trainer's settings: the common ones, overridden by the section's, then by the arm's."""
        return {**self.args.common, "seed": self.seed, **getattr(self.args, section), **differences}

    def problems(self, n: int, stream: int = 0, split: str = "train") -> list[Problem]:
        """Draw problems; another stream has other images; `train` is stream 0, `evaluation` stream 1."""
        return drawn(self.args, n, self.seed + stream, split)

    def settings(self, arm: str) -> dict[str, Any]:
        """An arm's own settings of training."""
        own = self.args.arms.get(arm, {})
        return {name: value for name, value in own.items() if name not in (_OF, _EVALUATION)}

    def source(self, arm: str) -> Path | None:
        """Folder of the arm that this one is made of."""
        of = self.args.arms.get(arm, {}).get(_OF)
        return None if of is None else self.folder / of

    def refuse_source(self, arm: str) -> None:
        """Refuse a source arm where it would have no effect."""
        if self.source(arm) is not None:
            raise ValueError(
                f"The arm {arm!r} is of {self.args.arms[arm][_OF]!r}, but would be trained from the policy that all "
                f"begin with. Leave {_OF!r} out."
            )

    def title(self, arm: str) -> str:
        """Title of an arm's evaluation."""
        return f"{arm}, seed {self.seed}"

    def asked(self, arm: str) -> dict[str, Any]:
        """Arguments of `evaluate` for an arm: `n`, `sampling_params` and `seed`."""
        sampling_params = {**self.args.evaluation, **self.args.arms.get(arm, {}).get(_EVALUATION, {})}
        n = int(sampling_params.pop("n", 1))
        return {"n": n, "sampling_params": SamplingParams(**{"temperature": 0.0, **sampling_params}), "seed": self.seed}


def measure(start: Start, protocol: AnsweringProtocol, arm: str, model: Path, folder: Path) -> None:
    """Evaluate a policy on the new images, and save the evaluation."""
    evaluate_into(
        folder / "evaluation",
        start.evaluation,
        TransformersEngine(str(model), batch_size=_BATCH),
        protocol,
        about=dict.fromkeys(("name", "title"), start.title(arm)),
        batch_size=_BATCH,
        description=arm,
        **start.asked(arm),
    )


@dataclass(frozen=True)
class Part:
    """One part of the study.

    Attributes:
        lessons: what the policy is taught before.
        other_lessons: what it is taught instead, for other values of `first_answers` than "worked".
        train: start, arm, folder → trains the arm, and leaves a model in `folder`.
        protocol: start, arm → how its answers are asked for.
        claims: what the paper says.
        prepare: makes what the arms of a seed share, unless that was done, and returns the policy that they begin with;
            by default that of `lessons`.
        prepares: folders of a seed that `prepare` writes.
        measure: start, protocol, arm, model, folder → leaves an evaluation in `folder`.
    """

    lessons: Lessons
    train: Callable[[Start, str, Path], None]
    protocol: Callable[[Start, str], AnsweringProtocol]
    claims: Sequence[Claim]
    prepare: Callable[[Start], str] = lambda start: start.policy
    prepares: Sequence[str] = ()
    measure: Callable[[Start, AnsweringProtocol, str, Path, Path], None] = measure
    other_lessons: Mapping[str, Lessons] = field(default_factory=dict)

    def taught(self, args: StudyArguments) -> Lessons:
        """Lessons of the initial policy.

        Raises:
            ValueError: the part has no such first answers.
        """
        lessons = {"worked": self.lessons, **self.other_lessons}
        if args.first_answers not in lessons:
            raise ValueError(
                f"first_answers={args.first_answers!r}: the part {args.part!r} has {', '.join(map(repr, lessons))}."
            )
        return lessons[args.first_answers]


def begin(args: StudyArguments, part: Part, seed: int) -> Start:
    """Return a seed's policy, taught unless it exists, and its problems."""
    folder = Path(args.output_dir) / f"seed-{seed}"
    policy, lessons = folder / "cold_start", part.taught(args)

    def teach() -> None:
        model, processor = build_model(args.family, args.size, seed=seed, **lessons.vocabulary)
        cold_start(
            model,
            processor,
            list(args.tasks),
            policy,
            lessons=lessons,
            target_accuracy=args.cold_start_accuracy,
            level=args.tasks,
            problems=args.cold_start_rows,
            seed=seed,
        )

    do_once(folder, "cold_start", {name: getattr(args, name) for name in _TAUGHT_BY}, policy, teach)
    train = problems_dataset(drawn(args, args.train_rows, seed))
    evaluation = problems_dataset(drawn(args, args.eval_rows, seed + 1, "new_pictures"))
    return Start(args, seed, folder, str(policy), train, evaluation)


def drawn(args: StudyArguments, n: int, seed: int, split: str = "train") -> list[Problem]:
    """Draw problems of the study's tasks."""
    return make_problems(list(args.tasks), n, level=args.tasks, seed=seed, split=split)


def same_model(target: str | Path, model: Path) -> None:
    """Link an existing model for an arm that trains nothing."""
    model.parent.mkdir(parents=True, exist_ok=True)
    model.symlink_to(Path(target).resolve(), target_is_directory=True)


def do_arm(args: StudyArguments, part: Part, seed: int, arm: str) -> None:
    """Train and evaluate one arm, unless it is done.

    Processes that do the same arm, or prepare the same seed, wait for each other: workers may outlive the study that
    began them.

    Raises:
        ValueError: there is no such arm, or it is named like a folder that the arms of a seed share.
        SettingsChanged: it was begun with other settings, its own or those of what it is made of.
    """
    shared = ("cold_start", *part.prepares)
    if arm not in (BEFORE, *args.arms) or arm in shared:
        raise ValueError(f"The arm {arm!r}: expected one of {[BEFORE, *args.arms]}, none of them named as {shared}.")
    folder = Path(args.output_dir) / f"seed-{seed}" / arm
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / "prepared.lock"):
        start = begin(args, part, seed)
        start = replace(start, policy=part.prepare(start))
    with FileLock(folder / "arm.lock"):
        model = Path(start.policy)
        if arm != BEFORE:
            model = folder / "model"
            own, *sources = _made_of(args, arm)
            settings = {**{name: getattr(args, name) for name in _TRAINED_BY}, "arm": own, "of": sources}
            do_once(folder, "train", settings, model, lambda: part.train(start, arm, folder))
        part.measure(start, part.protocol(start, arm), arm, model, folder)
        write_whole(_mark(args, seed, arm), _decided_by(args, arm))


def is_done(args: StudyArguments, seed: int, arm: str) -> bool:
    """Whether an arm was trained and evaluated with the current settings."""
    mark = _mark(args, seed, arm)
    return mark.exists() and mark.read_text() == _decided_by(args, arm)


def _mark(args: StudyArguments, seed: int, arm: str) -> Path:
    return Path(args.output_dir) / f"seed-{seed}" / arm / "evaluation" / "arm.json"


def _decided_by(args: StudyArguments, arm: str) -> str:
    """Everything an arm's evaluation depends on: shared settings, its own, and those of its source arms.

    A string, so that one which was cut when its process was killed is merely another one.
    """
    shared = {name: getattr(args, name) for name in (*_TRAINED_BY, "eval_rows", "evaluation")}
    return json.dumps({**shared, "arms": _made_of(args, arm)}, sort_keys=True)


def _made_of(args: StudyArguments, arm: str) -> list[dict[str, Any]]:
    """The settings of an arm, of its source, of that one's source, and so on."""
    arms = [args.arms.get(arm, {})]
    while _OF in arms[-1]:
        arms.append(args.arms.get(arms[-1][_OF], {}))
    return arms


def do_all(args: StudyArguments, command: Sequence[str]) -> None:
    """Run every arm of every seed in its own process, `workers` at a time, each after its source.

    Finished arms start no process.

    Args:
        args: arguments of the study.
        command: command that starts this study; `--only seed/arm` is appended.

    Raises:
        RuntimeError: an arm failed; names it and the file that holds what it said.
    """
    jobs = [(seed, arm) for wave in in_waves(args.arms) for arm in wave for seed in args.seeds]
    done = {job for job in jobs if is_done(args, *job)}
    waiting = [job for job in jobs if job not in done]
    running: dict[Future[None], tuple[int, str]] = {}

    def ready(seed: int, arm: str) -> bool:
        # the first one makes the policy of the seed
        return arm == BEFORE or (seed, args.arms[arm].get(_OF, BEFORE)) in done

    with ThreadPoolExecutor(args.workers) as pool, tqdm(total=len(jobs), initial=len(done), desc=args.part) as bar:
        while waiting or running:
            for seed, arm in [job for job in waiting if ready(*job)][: args.workers - len(running)]:
                waiting.remove((seed, arm))
                running[pool.submit(_do, f"{seed}/{arm}", command, Path(args.output_dir))] = (seed, arm)
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                ended.result()
                done.add(running.pop(ended))
                bar.update()


def _do(job: str, command: Sequence[str], folder: Path) -> None:
    log = folder / "logs" / f"{job.replace('/', '-')}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as said:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # one thread is faster than two for models this small
        done = subprocess.run([*command, "--only", job], stdout=said, stderr=said, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"The study's {job} failed; {log} ends:\n{log.read_text()[-2000:]}")


def outcomes(args: StudyArguments) -> dict[int, dict[str, QuestionTable]]:
    """Read seed → arm → table of each question's contribution to each metric.

    Raises:
        ValueError: the arms of a seed did not answer the same questions in one order.
    """
    found = {}
    for seed in args.seeds:
        folders = {arm: Path(args.output_dir) / f"seed-{seed}" / arm / "evaluation" for arm in (BEFORE, *args.arms)}
        results = {arm: read_evaluation(folder).results for arm, folder in folders.items()}
        asked = {arm: [(one.id, one.gold) for one in each.questions] for arm, each in results.items()}
        for arm in args.arms:
            if asked[arm] != asked[BEFORE]:
                raise ValueError(
                    f"{folders[arm]} has answers to other questions than {folders[BEFORE]}; expected the same in the "
                    "same order. Remove the folder of the arm, and start again."
                )
        found[seed] = {arm: each.table for arm, each in results.items()}
    return found
