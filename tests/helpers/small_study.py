"""The study at a small size, for its tests."""

from pathlib import Path

import yaml

from study.running import StudyArguments

ROOT = Path(__file__).parents[2]


def small(part, folder, **settings):
    """The shipped configuration, but for all that takes time."""
    given = yaml.safe_load((ROOT / f"configs/study/{part}.yaml").read_text())
    given |= {"size": "test", "cold_start_accuracy": 0.0, "train_rows": 64, "eval_rows": 6, "seeds": [0]}
    less = {"max_steps": 2, "per_device_train_batch_size": 16, "num_generations": 4}
    for arm in given["arms"].values():  # where an arm has its own, it keeps its share, in as many groups
        arm |= {name: arm[name] * value // given["rl"][name] for name, value in less.items() if name in arm}
        if "num_generations" in arm:
            arm["per_device_train_batch_size"] = 4 * arm["num_generations"]
    given["rl"] |= {**less, "learning_rate": 0.0}  # hardly taught policies earn nothing, which would be an error
    given["evaluation"] |= {"max_new_tokens": 8}
    given["sft"] = {**given.get("sft", {}), "max_steps": 2, "per_device_train_batch_size": 4}
    given["common"] |= {"use_cpu": True, "logging_steps": 1}
    return StudyArguments(**{**given, "output_dir": str(folder), **settings})
