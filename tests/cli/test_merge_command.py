"""Two machines without a common disk: each does its share, and is killed; merged, it is one undisturbed run."""

import random
import time

import pytest
from chat_server import chat_server
from commands import rows_of
from datasets import Dataset
from processes import begin
from taught_policy import questions, teach
from test_evaluate_command import files_of, finished

from trl_mmreason.cli.main import main
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.jobs.store import Store

NOBODY = "http://127.0.0.1:9/v1"  # a port where nothing listens


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "test.parquet"
    Dataset.from_list([{**row, "id": f"{row['id']}-{k}"} for k in range(4) for row in questions()]).to_parquet(path)
    return path


@pytest.fixture(scope="module")
def policy():
    """Address of a policy that writes chains."""
    with chat_server(TransformersEngine(*teach())) as url:
        yield url


def units_of(path):
    with Store(path) as store:
        return {stage: list(store.records(stage)) for stage in store.stages()}


def do_share(store, kills, *command):
    """Run a command in a process of its own, killed so often while it fills the store, and then to its end."""
    moments = random.Random(str(command))
    for _ in range(kills):
        enough = finished(store) + moments.randint(1, 4)
        process = begin("helpers/command_run.py", *command)
        while process.is_alive() and finished(store) < enough:
            time.sleep(0.002)
        process.kill()
        process.join()
    process = begin("helpers/command_run.py", *command)
    process.join()
    assert process.exitcode == 0


COMMANDS = {
    "prefilter": ["--rule", "share", "--low", "0", "--high", "1", "--n", "4", "--max-new-tokens", "8"],
    "annotate": ["--by", "monte-carlo", "--paths", "3", "--n", "2", "--max-new-tokens", "48"],
}


@pytest.mark.full
@pytest.mark.parametrize("name", COMMANDS)
def test_shares_of_two_machines_are_one_run(name, data, policy, tmp_path, capsys):
    """All stages of a command: what comes after the first answers stays with their question's machine."""

    def command(folder, server, *more):
        output = tmp_path / folder / "rows.parquet"
        asked = ["--model", "policy", "--server", server, "--split", "train", "--batch-size", "2", *more]
        return [name, str(data), str(output), *COMMANDS[name], *asked], f"{output}.sqlite"

    whole, whole_store = command("whole", policy)
    main(whole)
    kept = capsys.readouterr().out.replace("/whole/", "/both/")
    stores = []
    for machine in (0, 1):
        share, store = command(f"machine-{machine}", policy, "--share", f"{machine}/2")
        do_share(tmp_path / f"machine-{machine}" / "rows.parquet.sqlite", 2, *share)
        stores.append(store)
        assert not (tmp_path / f"machine-{machine}" / "rows.parquet").exists()  # it would look like the whole result
    shares = [units_of(store) for store in stores]
    both, both_store = command("both", NOBODY)
    main(["merge", *stores, "--output", both_store])
    assert units_of(both_store) == units_of(whole_store)
    for stage, records in units_of(whole_store).items():
        of_each = [len(share[stage]) for share in shares]
        assert sum(of_each) == len(records), stage  # no unit was done by both
        assert all(of_each) == bool(records), stage
    filled = {"prefilter": 3, "annotate": 6}[name]  # questions, answers and verdicts, once or twice
    assert sum(map(bool, units_of(whole_store).values())) == filled
    capsys.readouterr()
    main(both)  # there is nobody to ask any more
    assert capsys.readouterr().out == kept
    assert (
        rows_of(tmp_path / "both" / "rows.parquet").to_list() == rows_of(tmp_path / "whole" / "rows.parquet").to_list()
    )


@pytest.mark.full
def test_an_evaluation_in_shares(data, policy, tmp_path, capsys):
    def command(folder, server, *more):
        fixed = ["--n", "4", "--max-new-tokens", "48", "--protocol", "chain-of-step", "--batch-size", "2"]
        return ["evaluate", f"own={data}", "--model", "policy", "--server", server, *fixed, "--output", folder, *more]

    def store_of(folder):
        return tmp_path / folder / "own" / "answers.sqlite"

    main(command(str(tmp_path / "whole"), policy))
    for machine in (0, 1):
        folder = f"machine-{machine}"
        do_share(store_of(folder), 2, *command(str(tmp_path / folder), policy, "--share", f"{machine}/2"))
        assert not (tmp_path / folder / "own" / "results.json").exists()
    main(["merge", str(store_of("machine-0")), str(store_of("machine-1")), "--output", str(store_of("both"))])
    assert "answers: 32 units\n" in capsys.readouterr().out
    main(command(str(tmp_path / "both"), NOBODY))
    assert files_of(tmp_path / "both" / "own") == files_of(tmp_path / "whole" / "own")


def test_a_share_says_what_comes_next(data, policy, tmp_path, capsys):
    output = tmp_path / "rows.parquet"
    asked = ["--model", "policy", "--server", policy, "--n", "1", "--max-new-tokens", "2"]
    main(["prefilter", str(data), str(output), *asked, "--share", "2/4"])
    assert capsys.readouterr().out == (
        f"share 2/4: 2 questions are done\n{output}.sqlite\nWhen all 4 shares are done, merge their stores with "
        "`mmreason merge`, and run this command without --share on the merged store.\n"
    )


def test_an_empty_share_is_refused(data, policy, tmp_path):
    given = ["prefilter", str(data), str(tmp_path / "rows.parquet"), "--model", "policy", "--server", policy]
    with pytest.raises(SystemExit, match="--share 9/10 of 8 questions is empty; use fewer machines"):
        main([*given, "--share", "9/10"])
