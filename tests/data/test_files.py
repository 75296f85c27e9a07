import os
import subprocess
import sys

import pytest
from hub_stub import HubStub
from loopback import serving

from trl_mmreason.data.folders import NoSuchFolder, atomic_path, check_model_path, is_missing_path


def killed_while_writing(path):
    with atomic_path(path) as unfinished:
        unfinished.write_text("ne")
        raise RuntimeError("killed")


def test_what_was_there_stays_until_the_new_is_whole(tmp_path):
    path = tmp_path / "rounds.json"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="killed"):
        killed_while_writing(path)
    assert path.read_text() == "old"
    with atomic_path(path) as unfinished:
        unfinished.write_text("new")
        assert path.read_text() == "old"
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("rounds.json", "new")]


def test_a_folder_is_there_as_a_whole_and_a_helper_puts_nothing_in_its_place(tmp_path):
    folder = tmp_path / "model"
    with atomic_path(folder) as unfinished:
        unfinished.mkdir()
        (unfinished / "weights").write_text("1")
        with atomic_path(folder, replace=False) as same:
            assert same == unfinished
        assert not folder.exists()
    assert (folder / "weights").read_text() == "1"


def test_a_name_that_was_meant_as_a_path_is_told_from_a_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/quickstart").mkdir(parents=True)
    for name in ("Qwen/Qwen2.5-VL-3B-Instruct", "gpt2", "runs/quickstart", "runs", str(tmp_path), "~"):
        assert not is_missing_path(name)
    for name in ("runs/quickstrt", "/nowhere", "./nowhere", "~/nowhere/at/all", "a/b/c", "nowhere/", "../nowhere"):
        assert is_missing_path(name)
        with pytest.raises(NoSuchFolder, match=f"^there is no folder {name}; give one with a model, or a Hub id"):
            check_model_path(name)
    with pytest.raises(NoSuchFolder, match=r"Hub id \(the Hub was not asked, as there is a folder runs\)$"):
        check_model_path("runs/quickstrt")


def test_a_hub_id_of_which_nothing_is_cached_is_refused_offline(tmp_path):
    """`conftest.py` has set `HF_HUB_OFFLINE`."""
    (tmp_path / "models--owner--cached/snapshots/1").mkdir(parents=True)
    check_model_path("owner/cached", tmp_path)
    with pytest.raises(NoSuchFolder, match=r"^there is no folder owner/other, .* cannot be asked: .* offline mode is"):
        check_model_path("owner/other", tmp_path)


def checked_by(endpoint, folder):
    """What stderr says of `runs/nowhere`, where there is no folder `runs`, with this Hub."""
    hub = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": endpoint, "HF_HOME": str(folder), "NO_PROXY": "127.0.0.1"}
    command = "from trl_mmreason.data.folders import check_model_path; check_model_path('runs/nowhere')"
    done = subprocess.run(
        [sys.executable, "-c", command],
        cwd=folder,  # the checkout has a folder `runs` after the quickstart
        env={**os.environ, **hub},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr.splitlines()


@pytest.mark.full
def test_a_hub_out_of_reach_is_asked_once_and_one_that_answers_decides(tmp_path):
    """Its client retries for 23 seconds in each of up to six requests."""
    *_, last = asked = checked_by("http://127.0.0.1:1", tmp_path)
    assert "NoSuchFolder: there is no folder runs/nowhere, the Hub's cache has no such model, and the Hub" in last
    assert not [line for line in asked if "Retrying" in line]
    with serving(HubStub("tester", "token")) as hub:
        assert checked_by(hub.url, tmp_path) == []
