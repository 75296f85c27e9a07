"""SOPHIA's data by several processes, of which the first takes longer to describe: `sampling_run.py FOLDER`."""

import json
import os
import sys
import time
from pathlib import Path

from datasets import Dataset, Features, Image, List, Value
from PIL import Image as Pictures

from trl_mmreason.sampling import Sample
from trl_mmreason.sampling.store import Store
from trl_mmreason.sophia.sampling import OffPolicySampling, make_off_policy_data

RANK = int(os.environ["RANK"])
FEATURES = {"id": Value("string"), "prompt": Value("string"), "answer": Value("string"), "images": List(Image())}


class Party:
    def __init__(self, kind, text, seconds=0.0):
        self.settings, self.text, self.seconds = {"kind": kind}, text, seconds

    def sample(self, requests, sampling_params):
        time.sleep(self.seconds)
        return [[Sample(self.text, "stop", [1])] for _ in requests]


def main(folder):
    rows = [
        {"id": id_, "prompt": "How many?", "answer": "7", "images": [Pictures.new("RGB", (8, 8))]} for id_ in ("a", "b")
    ]
    parties = Party("policy", "Seven.", 0.5 * (RANK == 0)), Party("reasoner", r"\boxed{7}")
    with Store(folder / "s.sqlite") as store:
        made = make_off_policy_data(
            Dataset.from_list(rows, features=Features(FEATURES)),
            *parties,
            store,
            OffPolicySampling(captions=2, trajectories=3),
        )
    (folder / f"{RANK}.json").write_text(json.dumps([*made.captions, *made.trajectories, made.rows["id"][:]]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
