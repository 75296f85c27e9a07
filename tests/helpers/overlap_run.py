"""One of several processes that fill a store, each with a grader of its own: `overlap_run.py FOLDER`."""

import json
import os
import sys
from pathlib import Path

from datasets import Dataset
from parity import Parity, echo, questions

from trl_mmreason.generation.protocols import Direct
from trl_mmreason.jobs.answering import answer_questions
from trl_mmreason.jobs.store import Store


def main(folder: Path) -> None:
    grader = Parity(overlaps=True)
    with Store(folder / "s.sqlite") as store:
        answers = answer_questions(
            Dataset.from_list(questions(7)), echo(), store, Direct(), stage="answers", n=3, grader=grader, batch_size=4
        )
        right = [[sample["turns"][0]["correct"] for sample in samples] for samples in answers]
    told = {"right": right, "asked": [text for _, text in grader.asked]}
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
