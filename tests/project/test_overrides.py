"""What the tables "paper, code, test" say of the code as a whole: whose `train` and `compute_loss` are ours."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "trl_mmreason"


def overriding(method):
    """Class → whether its own method of this name calls that of its base."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                own = [part for part in node.body if isinstance(part, ast.FunctionDef)]
                called = {ast.unparse(part.func) for part in ast.walk(node) if isinstance(part, ast.Call)}
                if method in {part.name for part in own}:
                    found[node.name] = f"super().{method}" in called
    return found


def test_which_classes_have_a_loss_of_their_own():
    """GRPO's is TRL's with a term for the KL of turns; two take the place of TRL's. DPO's and all others are TRL's."""
    assert overriding("compute_loss") == {
        "GroupGRPOTrainer": True,
        "OffPolicyRewardTrainer": False,
        "ProcessRewardTrainer": False,
    }


def test_which_classes_train_in_a_way_of_their_own():
    """All call TRL's `train`: iterative DPO once a round, the others once, with something before or behind it."""
    found = overriding("train")
    assert all(found.values())
    trainers = {name for name in found if name.endswith("Trainer")}
    assert trainers == {"GroupGRPOTrainer", "IterativeDPOTrainer"}
    assert len(found) == 5  # and the mixins of checkpoints, of facts and of times
