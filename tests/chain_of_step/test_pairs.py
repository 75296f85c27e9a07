"""Pairs of paths: by hand, with their images, in the order of the questions."""

from math import isnan

import pytest
from datasets import Dataset
from support import drawn_rows

from trl_mmreason.chain_of_step.chains import Path, read_path
from trl_mmreason.chain_of_step.pairs import PAIR_FEATURES, make_pairs, pair_accuracies


def paths_of(rows):
    return {row["id"]: [Path(k, read_path(f"{row['id']} path {k}"), 5, True) for k in range(4)] for row in rows}


def test_best_against_worst_of_each_question_that_has_a_margin():
    """0.9 − 0.1 and 0.5 − 0.2 exceed 0.2; 0.4 − 0.2 = 0.2 does not; a question without scores gives no pair."""
    rows = Dataset.from_list(drawn_rows(4))
    first, second, third, fourth = ids = rows["id"]
    scores = {first: [0.3, 0.9, 0.1, 0.5], second: [0.2, 0.4, 0.3, 0.2], fourth: [0.2, 0.5, 0.5, 0.4]}
    pairs = make_pairs(rows, paths_of(rows), scores)
    assert pairs["id"] == [first, fourth]
    assert [row[0]["content"] for row in pairs["chosen"]] == [f"{first} path 1", f"{fourth} path 1"]
    assert [row[0]["content"] for row in pairs["rejected"]] == [f"{first} path 2", f"{fourth} path 0"]
    assert pairs["chosen_score"] == [0.9, 0.5]
    assert pairs["rejected_score"] == [0.1, 0.2]
    assert pairs["prompt"] == [rows[0]["prompt"], rows[3]["prompt"]]
    assert [len(images) for images in pairs["images"]] == [1, 1]
    assert pairs[1]["images"][0].tobytes() == rows[3]["images"][0].tobytes()
    assert len(set(ids)) == 4
    assert third not in pairs["id"]


def test_further_pairs_of_a_question():
    rows = Dataset.from_list(drawn_rows(3))
    scores = {rows["id"][1]: [0.0, 0.3, 0.6, 0.9]}
    pairs = make_pairs(rows, paths_of(rows), scores, pairing="ranked")
    assert (pairs["chosen_score"], pairs["rejected_score"]) == ([0.9, 0.6], [0.0, 0.3])
    pairs = make_pairs(rows, paths_of(rows), scores, pairing="all", max_pairs=3, threshold=0.5)
    assert (pairs["chosen_score"], pairs["rejected_score"]) == ([0.9, 0.9, 0.6], [0.0, 0.3, 0.0])
    assert [len(images) for images in pairs["images"]] == [2, 2, 2]


def test_paths_of_one_text_are_no_pair_however_their_scores_were_rounded():
    rows = Dataset.from_list(drawn_rows(1))
    (id_,) = rows["id"]
    paths = {id_: [Path(k, read_path(text), 5, True) for k, text in enumerate(("same", "same", "other"))]}
    pairs = make_pairs(rows, paths, {id_: [0.5, 0.502, 0.1]}, threshold=0.0, pairing="all")
    assert (pairs["chosen_score"], pairs["rejected_score"]) == ([0.502, 0.5], [0.1, 0.1])
    assert not len(make_pairs(rows, paths, {id_: [0.5, 0.502]}, threshold=0.0))


def test_how_often_the_chosen_and_the_rejected_are_right():
    """Of three chosen paths one is right, of two rejected that can be graded none; without pairs there is no share."""
    rows = Dataset.from_list(drawn_rows(3))
    verdicts = [(True, False), (False, None), (False, False)]  # of best and worst
    paths = {
        id_: [Path(k, read_path(f"path {k}"), 5, correct) for k, correct in enumerate(found)]
        for id_, found in zip(rows["id"], verdicts, strict=True)
    }
    pairs = make_pairs(rows, paths, dict.fromkeys(paths, [1.0, 0.0]))
    assert pair_accuracies(pairs, paths) == {"chosen_accuracy": 1 / 3, "rejected_accuracy": 0}
    assert all(isnan(share) for share in pair_accuracies(make_pairs(rows, paths, {}), paths).values())


@pytest.mark.parametrize("columns", [("id", "prompt"), ("id", "prompt", "images")])
def test_no_pair_and_no_image_keep_the_columns(columns):
    rows = Dataset.from_list(drawn_rows(2)).select_columns(list(columns))
    pairs = make_pairs(rows, paths_of(rows), {})
    assert len(pairs) == 0
    assert set(pairs.column_names) == {*PAIR_FEATURES, "images"}
    some = make_pairs(rows.select_columns(["id", "prompt"]), paths_of(rows), {rows["id"][0]: [0.0, 1.0, 0.5, 0.5]})
    assert some["images"] == [[]]
