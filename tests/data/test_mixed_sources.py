"""Several sources with weights in one YAML file: shares, order, ids, and what is refused."""

from collections import Counter

import PIL.Image
import pytest
import yaml
from support import write_lines

from trl_mmreason.data.mixed_sources import share_counts
from trl_mmreason.data.row_loading import DataError, load_rows

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def folder(tmp_path):
    """A folder with 20 questions about sums, 12 about dots with an image each, and 4 on a chart."""
    PIL.Image.new("RGB", (3, 2), "red").save(tmp_path / "red.png")
    write_lines(tmp_path / "sums.jsonl", [{"prompt": f"{n}+1?", "answer": str(n + 1)} for n in range(20)])
    dots = [{"question": f"dots {n}?", "gold": f"{n}", "image": "red.png"} for n in range(12)]
    (tmp_path / "dots").mkdir()
    PIL.Image.new("RGB", (3, 2), "red").save(tmp_path / "dots" / "red.png")
    write_lines(tmp_path / "dots" / "train.jsonl", dots)
    charts = [{"prompt": f"bar {n}?", "answer": [f"{n}", f"{n}.0"], "tolerance": 0.05} for n in range(4)]
    write_lines(tmp_path / "charts.jsonl", charts)
    return tmp_path


DOTS = {"source": "dots/train.jsonl", "name": "dots", "weight": 0.25, "columns": {"answer": "gold"}}
SUMS = {"source": "sums.jsonl", "weight": 0.75}


def mixture(folder, *sources):
    file = folder / "mixture.yaml"
    file.write_text(yaml.safe_dump({"sources": list(sources)}))
    return file


def parts_of(rows):
    return Counter(id_.partition("/")[0] for id_ in rows.dataset["id"])


def test_as_many_rows_as_the_shares_allow_without_repeating_one(folder):
    rows = load_rows(mixture(folder, SUMS, DOTS), seed=3)
    assert parts_of(rows) == {"sums": 20, "dots": 6}  # 20 / 0.75 = 26.7; a quarter of 26 is 6.5
    assert len(set(rows.dataset["id"])) == 26
    assert rows.columns == {
        "sums/prompt": "prompt",
        "sums/answer": "answer",
        "dots/prompt": "question",
        "dots/images": "image",
        "dots/answer": "gold",
    }
    (dot,) = [row for row in rows.dataset if row["id"] == next(i for i in rows.dataset["id"] if i.startswith("dots"))]
    assert dot["images"][0].getpixel((0, 0)) == (255, 0, 0)
    assert dot["prompt"][0]["content"] == f"dots {dot['answer']}?"


def test_the_draw_and_the_order_follow_from_the_seed(folder):
    file = mixture(folder, SUMS, DOTS)
    first, again, other = (load_rows(file, max_rows=16, seed=seed).dataset["id"][:] for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert sorted(first) != sorted(other)  # other rows, too
    assert Counter(id_.partition("/")[0] for id_ in first) == {"sums": 12, "dots": 4}
    places = [place for place, id_ in enumerate(first) if id_.startswith("dots")]
    assert places != list(range(12, 16))  # not one source after the other


def test_answers_in_lists_and_tolerances_go_with_others(folder):
    charts = {"source": "charts.jsonl", "weight": 1}
    rows = load_rows(mixture(folder, {**SUMS, "weight": 1}, charts)).dataset
    by_id = {row["id"]: row for row in rows}
    assert len(rows) == 8
    assert by_id["charts/charts-2"]["answer"] == ["2", "2.0"]
    assert by_id["charts/charts-2"]["tolerance"] == 0.05
    (sums,) = {
        (row["answer"][0] == str(int(id_.split("-")[1]) + 1), row["tolerance"])
        for id_, row in by_id.items()
        if "sums" in id_
    }
    assert sums == (True, None)


def test_bad_rows_are_named_with_their_source(folder):
    write_lines(folder / "bad.jsonl", [{"prompt": "?", "answer": ""}, {"prompt": "?", "answer": "1", "id": "q"}])
    rows = load_rows(mixture(folder, SUMS, {"source": "bad.jsonl", "weight": 1}))
    assert [(problem.row, problem.id) for problem in rows.problems] == [(0, "bad/bad-0")]
    assert "bad/q" in rows.dataset["id"][:]


def test_too_many_rows_are_refused_with_what_would_do(folder):
    with pytest.raises(DataError, match="60 rows need 45 of 'sums', which has 20 usable ones. Fix: at most 26 rows"):
        load_rows(mixture(folder, SUMS, DOTS), max_rows=60)


REFUSED = [
    ({}, "holds '{}'; expected one key, sources, with a list of sources"),
    ({"sources": [], "seed": 1}, "expected one key, sources"),
    ({"sources": [{"source": "sums.jsonl"}]}, "source 1: got .*; expected at least source: … and weight: …"),
    ({"sources": [{**SUMS, "wieght": 1}]}, "source 1: there is no 'wieght'; did you mean `weight`"),
    ({"sources": [{**SUMS, "weight": 0}]}, "source 1: weight is 0; expected a number above 0"),
    ({"sources": [SUMS, SUMS]}, "two sources are called 'sums'; give each a name"),
    ({"sources": [{**SUMS, "source": "no.jsonl"}]}, "no.jsonl' does not exist here"),
]


@pytest.mark.parametrize(("content", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_no_mixture_is_refused(folder, content, message):
    (folder / "m.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(DataError, match=message):
        load_rows(folder / "m.yaml")


def test_a_mixture_that_is_not_there_or_no_yaml(folder):
    with pytest.raises(DataError, match="nowhere.yaml' does not exist here"):
        load_rows(folder / "nowhere.yaml")
    (folder / "m.yml").write_text("sources: [")
    with pytest.raises(DataError, match="is not YAML"):
        load_rows(folder / "m.yml")


def test_a_key_that_comes_twice_is_refused(folder):
    """YAML's parser takes the last one without a word."""
    (folder / "m.yaml").write_text("sources:\n  - {source: sums.jsonl, weight: 0.7, weight: 0.2}\n")
    with pytest.raises(DataError, match="`weight` comes twice, in lines 2 and 2"):
        load_rows(folder / "m.yaml")


def test_counts_go_by_the_largest_remainder():
    assert share_counts({"a": 10, "b": 10, "c": 10}, {"a": 1, "b": 1, "c": 1}, 10) == {"a": 4, "b": 3, "c": 3}
    assert share_counts({"a": 3, "b": 100}, {"a": 0.1, "b": 0.9}) == {"a": 3, "b": 27}


@pytest.mark.parametrize("scale", [1e-7, 1, 1e7])
def test_weights_count_by_their_ratio_however_small_or_large_they_are(scale):
    assert share_counts({"a": 100, "b": 100}, {"a": 14 * scale, "b": 6 * scale}, 100) == {"a": 70, "b": 30}
    assert share_counts({"a": 100, "b": 100}, {"a": scale, "b": 1e-9 * scale}) == {"a": 100, "b": 0}


def test_paths_may_begin_with_the_home_folder(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    mixture(folder, SUMS | {"source": "~/sums.jsonl"}, DOTS | {"source": "~/dots", "image_root": "~/dots"})
    assert len(load_rows("~/sums.jsonl").dataset) == 20
    assert parts_of(load_rows("~/mixture.yaml", seed=3)) == {"sums": 20, "dots": 6}
    assert len(load_rows("~/dots/train.jsonl", image_root="~/dots", columns={"answer": "gold"}).dataset) == 12
