from datasets import Dataset
from support import drawn_rows, ids_of, load

from trl_mmreason.evaluation import answers
from trl_mmreason.evaluation.answers import accuracy, for_all_rows


def test_every_row_once_in_order_and_none_left_out(checkpoints):
    model, processor = load(checkpoints("qwen2_5_vl"))
    rows = [{**row, "number": number, "id": "own" if number == 1 else None} for number, row in enumerate(drawn_rows(5))]
    sizes = []

    def answer(batch):
        sizes.append(len(batch))
        return [None if row["number"] == 3 else (row["number"], row["id"]) for row in batch]

    model.train()
    found = for_all_rows(model, processor, Dataset.from_list(rows), answer, stage="x", batch_size=2)
    assert found == [(0, "0"), (1, "own"), (2, "2"), (4, "4")]
    assert sizes == [2, 2, 1]
    assert not model.training


def test_accuracy_is_the_share_of_answers_that_are_right(checkpoints, monkeypatch):
    model, processor = load(checkpoints("internvl"))
    said = ids_of(processor, r"1+1=\boxed{2}")
    monkeypatch.setattr(answers, "generate", lambda model, processor, prompts, **settings: [said] * len(prompts))
    golds = ["3", "2", "", "4"]  # the third cannot be used
    rows = Dataset.from_list([{**row, "answer": gold} for row, gold in zip(drawn_rows(4), golds, strict=True)])
    assert accuracy(model, processor, rows, max_new_tokens=4, batch_size=3) == 1 / 3
