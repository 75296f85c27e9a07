"""Tables and the image of Chain-of-Step's stages."""

from PIL import Image

from trl_mmreason.chain_of_step.recipe import format_process_reward, plot_rounds


def test_a_line_a_set_of_held_out_chains():
    metrics = {
        "eval_seen_step_accuracy": 0.911,
        "eval_seen_answer_accuracy": 0.837,
        "eval_seen_step_auroc": 1.0,
        "eval_seen_answer_auroc": 0.905,
        "eval_seen_loss": 0.3,
        "eval_other_step_accuracy": 0.05,  # all answers of these were right, or all wrong: there is no AUROC
        "eval_other_answer_accuracy": float("nan"),
        "eval_answers_answer_accuracy": 0.5,  # no step of these has a label
        "epoch": 1.0,
    }
    assert format_process_reward(metrics).splitlines() == [
        "process reward model, in percent",
        "         step acc  answer acc  step AUROC  answer AUROC",
        "seen         91.1        83.7       100.0          90.5",
        "other         5.0         n/a         n/a           n/a",
        "answers       n/a        50.0         n/a           n/a",
    ]


def test_the_rounds_are_drawn_as_far_as_they_are_known(tmp_path):
    measures = {"accuracy": 0.5, "trajectory_score": 0.25, "steps": 2.0, "step_tokens": 9.0}
    rounds = [
        {"round": 0, "train": measures, "eval": {"accuracy": 0.5, "steps": 2.0, "step_tokens": 9.0}},
        {"round": 1, "eval": {"accuracy": 0.75, "steps": 3.0, "step_tokens": 8.0}},
    ]
    sizes = []
    for known, name in ((rounds, "two.png"), (rounds[:1], "one.png")):
        plot_rounds(known, tmp_path / name)
        with Image.open(tmp_path / name) as image:
            image.verify()
            sizes.append(image.size)
    assert sizes == [(1008, 696)] * 2  # 8.4 × 5.8 inches of 120 pixels
    assert (tmp_path / "one.png").read_bytes() != (tmp_path / "two.png").read_bytes()
