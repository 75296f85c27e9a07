"""Do the papers' claims hold on the miniature? Run one part of the study: arms, seeds, and a verdict on each claim.

    python -m study --config configs/study/adapo.yaml

Arms are trained two at a time, each in a process of its own (`--workers`). What is finished is not done again, and
what was killed resumes. OUTPUT gets table.txt, claims.txt, claims.json and curves.png, and for every arm of every seed
an evaluation with its report; figures.png, too, where a paper compares more than two arms in a curve. Claims and
figures about arms that the config does not name are left out. Where it names claims to `decide`, seeds are added until
they are.
"""

import json
import sys
from pathlib import Path

from trl import TrlParser

from .claims import claims_about, judge
from .figures import draw_figures
from .logged import with_logged
from .parts import PARTS
from .report import draw_histories, format_arms, format_by_seed, format_claims, write_part
from .running import BEFORE, StudyArguments, do_all, do_arm, outcomes


def main(args: StudyArguments) -> None:
    if args.part not in PARTS:
        raise ValueError(f"part={args.part!r}, expected one of {sorted(PARTS)}.")
    module = PARTS[args.part]
    if args.only:
        seed, _, arm = args.only.partition("/")
        do_arm(args, module.PART, int(seed), arm)
        return
    there = {BEFORE, *args.arms}  # some of a part's arms will do
    claims = claims_about(module.PART.claims, there)
    unknown = set(args.decide.get("claims", [])) - {claim.text for claim in claims}
    if unknown:
        raise ValueError(f"decide: {sorted(unknown)} are no claims about these arms: {[each.text for each in claims]}.")
    folder = Path(args.output_dir)
    while True:
        do_all(args, [sys.executable, "-m", "study", *sys.argv[1:]])
        histories = {arm: [history(folder / f"seed-{seed}" / arm) for seed in args.seeds] for arm in args.arms}
        found = with_logged(outcomes(args), histories, getattr(module, "LOGGED", ()))
        judged = [judge(claim, found, args.rule, args.margin(claim)) for claim in claims]
        if not args.needs_another_seed(judged):
            break
        args = args.with_another_seed()
    table = format_arms(found, module.METRICS)
    if hasattr(module, "BY_SEED"):
        table += "\n\n" + format_by_seed({seed: module.BY_SEED(folder / f"seed-{seed}") for seed in args.seeds})
    write_part(folder, args.settings, judged, table, args.decide)
    trained = {arm: runs for arm, runs in histories.items() if any(runs)}
    draw_histories(trained, module.PANELS, folder / "curves.png")
    figures = [figure for figure in getattr(module, "FIGURES", ()) if figure.arms <= there]
    if figures:
        draw_figures(found, figures, folder / "figures.png")
    print(f"{table}\n\n{format_claims(judged)}\n\n{folder}")


def history(arm: Path) -> list[dict]:
    """The training log of an arm; empty for an arm with another's model."""
    if (arm / "model").is_symlink():
        return []
    return json.loads((arm / "model" / "trainer_state.json").read_text())["log_history"]


if __name__ == "__main__":
    (arguments,) = TrlParser((StudyArguments,)).parse_args_and_config()
    main(arguments)
