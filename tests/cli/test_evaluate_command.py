"""`mmreason evaluate` as users call it: every protocol, an adapter, a server, two processes, killed and begun again."""

import json
import random
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest
from benchmark_rows import LAYOUTS
from benchmark_rows.layout import saved
from chat_server import chat_server
from chat_stub import Handler, chat_stub
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from processes import begin, launch, serving
from support import drawn_rows, full_but, load
from taught_policy import questions, reward_model, teach
from transformers import AutoTokenizer

from trl_mmreason.adapo.prompts import EVALUATION_PROMPT
from trl_mmreason.cli.commands import command_options, trajectories
from trl_mmreason.cli.commands import evaluate as evaluate_command
from trl_mmreason.cli.main import build_parser, main
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.jobs import run
from trl_mmreason.jobs.store import Store, StoreError
from trl_mmreason.sophia.prompts import THINKING_PROMPT

FILES = ("results.json", "samples.jsonl", "results.txt", "pictures.parquet")


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Nine questions with images in a file."""
    path = tmp_path_factory.mktemp("own") / "test.parquet"
    Dataset.from_list(drawn_rows(9)).to_parquet(path)
    return f"own={path}"


@pytest.fixture(scope="module")
def chained(tmp_path_factory):
    """A policy that writes chains, what scores them, and questions to both, as files."""
    folder = tmp_path_factory.mktemp("chained")
    for part, name in zip(teach(), ("policy", "policy"), strict=True):
        part.save_pretrained(folder / name)
    reward_model().save_pretrained(folder / "scorer")
    Dataset.from_list(questions()).to_parquet(folder / "test.parquet")
    return folder


def evaluate(output, *arguments):
    """The folder that the command fills."""
    main(["evaluate", *map(str, arguments), "--output", str(output)])
    [folder] = [path for path in output.iterdir() if path.is_dir()]
    return folder


def files_of(folder):
    """What is written but for the command line, which names the folder."""
    found = {name: (folder / name).read_bytes() for name in FILES}
    results = json.loads(found.pop("results.json"))
    return {**found, "results": {name: value for name, value in results.items() if name != "command"}}


def results_of(folder):
    return json.loads((folder / "results.json").read_text())


def test_the_files_say_how_the_numbers_were_made(checkpoints, own, tmp_path, capsys):
    model = checkpoints("qwen2_5_vl")
    folder = evaluate(tmp_path, own, "--model", model, "--max-new-tokens", 6, "--system-prompt", "Think.", "--seed", 4)
    printed = capsys.readouterr().out
    assert "9 questions, 9 samples" in printed
    assert str(folder / "report.html") in printed
    assert (folder / "results.txt").read_text() in printed
    results = results_of(folder)
    assert results["command"].startswith(f"mmreason evaluate {own} --model {model}")
    assert results["benchmark"]["source"] == own.partition("=")[2]
    assert results["benchmark"]["questions"] == 9
    settings = results["settings"]
    assert settings["protocol"] == {"name": "direct"}
    assert (settings["n"], settings["seed"], settings["system_prompt"]) == (1, 4, "Think.")
    assert (settings["sampling_params"]["max_new_tokens"], settings["sampling_params"]["temperature"]) == (6, 0.0)
    assert settings["engine"]["model"] == model
    assert settings["grader"]["settings"].startswith("Grader(tolerance='strict'")
    assert {"trl_mmreason", "torch", "transformers", "mpmath"} <= results["versions"].keys()
    assert len((folder / "samples.jsonl").read_text().splitlines()) == 9
    assert "Results" in (folder / "report.html").read_text()


@pytest.mark.full
def test_long_work_says_how_far_it_is_where_stderr_is_no_terminal(checkpoints, own, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(run, "SECONDS_PER_LINE", 0.01)  # a minute
    evaluate(tmp_path, own, "--model", checkpoints("qwen2_5_vl"), "--max-new-tokens", 6, "--batch-size", 1)
    said = [line.split(" units")[0] for line in capfd.readouterr().err.splitlines() if line.startswith("own: ")]
    assert len(set(said)) > 2, said
    assert set(said) <= {f"own: {done} of 9" for done in range(10)}


def test_own_rows_as_llava_writes_them(checkpoints, tmp_path):
    rows = []
    for row in drawn_rows(4):
        for number, image in enumerate(row["images"]):
            image.save(tmp_path / f"{len(rows)}-{number}.png")
        names = [f"{len(rows)}-{number}.png" for number in range(len(row["images"]))]
        asked = "<image>" * len(names) + "\n" + row["prompt"][-1]["content"]
        turns = [{"from": "human", "value": asked}, {"from": "gpt", "value": row["answer"]}]
        rows.append(json.dumps({"id": str(len(rows)), "image": names, "conversations": turns}))
    (tmp_path / "test.jsonl").write_text("\n".join(rows))
    given = [f"own={tmp_path / 'test.jsonl'}", "--model", checkpoints("qwen2_5_vl"), "--max-new-tokens", 4]
    folder = evaluate(tmp_path / "out", *given)
    assert results_of(folder)["counts"]["questions"] == 4
    gold = [json.loads(line)["gold"] for line in (folder / "samples.jsonl").open()]
    assert gold == [row["answer"] for row in drawn_rows(4)]


def test_a_benchmark_by_name(checkpoints, tmp_path):
    arguments = ["--model", checkpoints("qwen2_5_vl"), "--max-new-tokens", 4, "--limit", 5]
    main(["evaluate", "miniature/adding", "miniature/counting", *map(str, arguments), "--output", str(tmp_path)])
    assert {path.name for path in tmp_path.iterdir()} == {"miniature-adding", "miniature-counting"}
    benchmark = results_of(tmp_path / "miniature-counting")["benchmark"]
    assert (benchmark["title"], benchmark["split"]) == ("Miniature, counting", "new_pictures")
    assert benchmark["instruction"] == ""
    assert "{question}" in benchmark["prompt_template"]


class Parties(Handler):
    """A policy that says much and no answer, and a judge that finds none."""

    def answer(self, body):
        self.say("There is a lot to be seen, and I cannot tell." if body["model"] == "policy" else "Extracted answer:")


def test_hints_stand_before_the_question_and_reach_the_judge(tmp_path):
    """SOPHIA's appendix C, Fig. A4 and A5, on a row of MathVista."""
    hint, question = LAYOUTS["mathvista"].questions[0].hint, "What is the force? (Unit: N)"
    source = saved(LAYOUTS["mathvista"], tmp_path / "copy")
    with chat_stub(Parties) as server:
        folder = evaluate(
            tmp_path / "out", f"mathvista={source}", "--model", "policy", "--server", server.url, "--limit", 1,
            "--openai-only", "--system-prompt", "sophia", "--judge", "judge", "--judge-server", server.url,
        )  # fmt: skip
        assert all("top_k" not in body and "max_completion_tokens" in body for body in server.bodies)
        (policy,), (judge,) = (
            [body["messages"] for body in server.bodies if body["model"] == name] for name in ("policy", "judge")
        )
    assert policy[0] == {"role": "system", "content": THINKING_PROMPT}
    assert policy[1]["content"][-1]["text"].startswith(f"{hint}\n{question}\n")
    assert f"\nHint: {hint}\nQuestion: {question}\n" in judge[0]["content"]
    assert results_of(folder)["settings"]["system_prompt"] == THINKING_PROMPT


class Extracting(Handler):
    """A policy that says much and no answer, a judge that finds one, and would call it right if it were asked."""

    def answer(self, body):
        asked = str(body["messages"][-1]["content"])
        replies = {True: "I see seven of them, I think.", False: "1" if "Judgement:" in asked else "-5"}
        self.say(replies[body["model"] == "policy"])


@pytest.mark.parametrize(("given", "right"), [([], 1.0), (["--judge-extracts-only"], 0.0)])
def test_the_rules_may_decide_about_what_the_judge_extracts(given, right, tmp_path):
    """SOPHIA's appendix C: with Fig. A5 alone the rules find −5 wrong; with Fig. A6 the judge says otherwise."""
    source = saved(LAYOUTS["mathvista"], tmp_path / "copy")
    with chat_stub(Extracting) as server:
        folder = evaluate(
            tmp_path / "out", f"mathvista={source}", "--model", "policy", "--server", server.url, "--limit", 1,
            "--judge", "judge", "--judge-server", server.url, *given,
        )  # fmt: skip
        asked = [body for body in server.bodies if body["model"] == "judge"]
    assert len(asked) == (1 if given else 2)
    assert results_of(folder)["metrics"]["accuracy"]["value"] == right


@pytest.mark.parametrize(("given", "right"), [([], 1.0), (["--answers", "declared"], 0.0)])
def test_answers_in_prose_count_where_the_authors_of_a_benchmark_extract_them(given, right, tmp_path):
    asked = LAYOUTS["mathvista"].questions[0]

    class Talking(Handler):
        def answer(self, body):
            self.say(f"The force that acts on it is {asked.right} N.")

    source = saved(LAYOUTS["mathvista"], tmp_path / "copy")
    with chat_stub(Talking) as server:
        arguments = ["--model", "policy", "--server", server.url, "--limit", 1, *given]
        folder = evaluate(tmp_path / "out", f"mathvista={source}", *arguments)
    assert results_of(folder)["metrics"]["accuracy"]["value"] == right


class Undecided(Extracting):
    """The judge finds an answer, and says once what it thinks of it, or never."""

    decided = 1

    def answer(self, body):
        if "Judgement:" in str(body["messages"][-1]["content"]):
            with self.server.lock:
                self.server.attempts["judged"] += 1
                decides = self.server.attempts["judged"] <= self.decided
            return self.say("Judgement: 1" if decides else "I would rather not say.")
        return super().answer(body)


def judged(source, output, server, *given):
    return evaluate(
        output, f"mathvista={source}", "--model", "policy", "--server", server.url, "--limit", 3,
        "--judge", "judge", "--judge-server", server.url, *given,
    )  # fmt: skip


def test_a_judge_that_cannot_be_read_makes_no_answer_wrong(tmp_path, capsys, caplog):
    source = saved(LAYOUTS["mathvista"], tmp_path / "copy")
    with chat_stub(Undecided) as server:
        folder = judged(source, tmp_path / "out", server)
        counts = results_of(folder)["counts"]
        assert (counts["decided_by_unreadable"], counts["decided_by_judge"], counts["no_answer"]) == (2, 1, 0)
        said = "2 answers have no verdict, as the judge's reply is missing or cannot be read; their questions count"
        assert said in capsys.readouterr().out + (folder / "results.txt").read_text()
        assert any(
            "The judge replied 'I would rather not say.', which cannot be read" in one for one in caplog.messages
        )
        asked = len(server.bodies)
        judged(source, tmp_path / "out", server)
        assert len(server.bodies) == asked
        server.attempts["judged"] = 0
        judged(source, tmp_path / "out", server, "--retry-failed")
        assert len(server.bodies) == asked + 4  # an extraction and a judgement of two
    assert results_of(folder)["counts"]["decided_by_judge"] == 2


def test_a_judge_that_says_nothing_ends_the_command_and_is_asked_again(tmp_path, monkeypatch):
    source = saved(LAYOUTS["mathvista"], tmp_path / "copy")
    with chat_stub(Undecided) as server:
        monkeypatch.setattr(Undecided, "decided", 0)
        expected = r"the judge decided about none of 3 answers, .* The first: .*'I would rather not say\.'$"
        with pytest.raises(SystemExit, match=expected):
            judged(source, tmp_path / "out", server)
        assert not (tmp_path / "out" / "mathvista" / "results.json").exists()
        monkeypatch.setattr(Undecided, "decided", 100)
        policy = len([body for body in server.bodies if body["model"] == "policy"])
        counts = results_of(judged(source, tmp_path / "out", server))["counts"]
        assert len([body for body in server.bodies if body["model"] == "policy"]) == policy
    assert (counts["decided_by_judge"], counts.get("decided_by_unreadable")) == (3, None)


@pytest.mark.parametrize("name", [*FILES, "report.html"])
def test_a_folder_in_the_place_of_a_file_is_refused_before_anything_is_asked(name, own, tmp_path):
    (tmp_path / "own" / name).mkdir(parents=True)
    with chat_stub() as server, pytest.raises(SystemExit, match=rf"mmreason evaluate: .*{name} is a folder, expected"):
        evaluate(tmp_path, own, "--model", "policy", "--server", server.url)
    assert server.bodies == []


class Broken(Handler):
    """A policy whose server answers in some way that is no answer, until it is healed."""

    replies = ()

    def answer(self, body):
        return self.reply(*self.replies) if self.replies else self.say(r"It is \boxed{1}.")


@pytest.mark.parametrize(
    ("status", "content", "reason"),
    [
        (200, b"<html>log in</html>", "answered with broken JSON"),
        (200, b'{"choices": [{"mess', "answered with broken JSON"),
        (200, {"error": {"message": "overloaded"}}, "overloaded"),
        (200, {"choices": []}, "it holds no answer"),
        (400, {"error": {"message": "image too large"}}, "HTTP 400 .*image too large"),
    ],
)
def test_where_no_sample_succeeds_the_command_fails_and_asks_again(status, content, reason, own, tmp_path, monkeypatch):
    with chat_stub(Broken) as server:
        monkeypatch.setattr(Broken, "replies", (status, content))
        arguments = [own, "--model", "policy", "--server", server.url, "--limit", 2]
        with pytest.raises(SystemExit, match=rf"^mmreason evaluate: all 2 samples failed, .* The first: .*{reason}"):
            evaluate(tmp_path, *arguments)
        assert not (tmp_path / "own" / "results.json").exists()
        monkeypatch.setattr(Broken, "replies", ())
        assert results_of(evaluate(tmp_path, *arguments))["counts"]["failed"] == 0


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("sophia", THINKING_PROMPT),
        ("Think in tags.", "Think in tags."),
        ("FILE", "As in the file."),
        ("null", None),
        ("None", None),
        (None, None),
    ],
)
def test_a_system_prompt_is_a_name_a_file_or_a_text(given, meant, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("As in the file.\n", encoding="utf-8")
    assert command_options.system_prompt(Namespace(system_prompt=str(file) if given == "FILE" else given)) == meant


@pytest.mark.parametrize("given", [[], ["null"], ["Check it."]])
def test_null_in_the_place_of_a_message_is_the_usual_one(given):
    """It was sent to the policy as it stands."""
    option = ["--followup", *given] if given else []
    parsed = build_parser().parse_args(["evaluate", "ai2d", "--model", "m", "--protocol", "two-turn", *option])
    meant = given if given == ["Check it."] else [EVALUATION_PROMPT]
    assert [evaluate_command._protocol(parsed).followup] == meant
    option = ["--caption-prompt", *given] if given else []
    parsed = build_parser().parse_args(["trajectories", "a", "b", "--model", "m", "--reasoner", "r", *option])
    assert trajectories.selection_settings(parsed).get("caption_prompt") == (
        "Check it." if "Check it." in given else None
    )


def test_an_empty_template_is_refused(tmp_path):
    """The usual one took its place."""
    with pytest.raises(SystemExit, match="the template '' has the fields"):
        evaluate(tmp_path, "miniature/adding", "--model", "m", "--prompt-template", "")


@pytest.mark.full
def test_several_benchmarks_end_in_one_table(checkpoints, own, tmp_path, capsys):
    arguments = ["--model", checkpoints("qwen2_5_vl"), "--max-new-tokens", "4", "--output", str(tmp_path)]
    main(["evaluate", own, own.replace("own=", "again="), *arguments])
    table = capsys.readouterr().out.splitlines()[-3:]
    assert [line.split()[:2] for line in table[1:]] == [["own", "9"], ["again", "9"]]


@pytest.mark.parametrize("protocol", ["two-turn", "reflection"])
def test_protocols_of_two_answers(checkpoints, own, tmp_path, protocol):
    folder = evaluate(
        tmp_path, own, "--model", checkpoints("qwen2_5_vl"), "--max-new-tokens", 8, "--protocol", protocol
    )
    results = results_of(folder)
    assert {"acc_t1", "acc_t2", "correction_rate", "misjudgment_rate"} < results["metrics"].keys()
    asks = results["settings"]["system_prompt"]
    assert "<reflection>" in asks if protocol == "reflection" else asks is None


@pytest.mark.parametrize("protocol", full_but("chain-of-step", ["chain-of-step", "best-of-n", "step-beam"]))
def test_protocols_in_steps(chained, tmp_path, protocol):
    scored = [] if protocol == "chain-of-step" else ["--process-reward", chained / "scorer", "--n", 4]
    folder = evaluate(
        tmp_path, f"sums={chained / 'test.parquet'}", "--model", chained / "policy", "--max-new-tokens", 48,
        "--protocol", protocol, *scored,
    )  # fmt: skip
    metrics = results_of(folder)["metrics"]
    assert ("best_of_4" in metrics) == (protocol == "best-of-n")
    assert metrics["accuracy"]["value"] is not None
    assert ("step_scores" in (folder / "samples.jsonl").read_text()) == (protocol != "chain-of-step")


@pytest.mark.full
def test_another_scorer_in_the_same_folder_samples_nothing_again(chained, tmp_path, monkeypatch):
    asked, sample = [], TransformersEngine.sample
    monkeypatch.setattr(TransformersEngine, "sample", lambda *given: [asked.append(given[1]), sample(*given)][1])
    reward_model(seed=2).save_pretrained(tmp_path / "other")
    found, common = {}, [f"sums={chained / 'test.parquet'}", "--model", chained / "policy", "--max-new-tokens", 48]
    for scorer in (chained / "scorer", tmp_path / "other"):
        folder = evaluate(tmp_path / "out", *common, "--n", 4, "--protocol", "best-of-n", "--process-reward", scorer)
        lines = [json.loads(line) for line in (folder / "samples.jsonl").open()]
        found[scorer] = ([line["turns"] for line in lines], [line["score"] for line in lines])
        assert results_of(folder)["settings"]["protocol"]["name"] == "best-of-n"
    (turns, scores), (same, others) = found.values()
    assert (len(asked), turns) == (1, same)
    assert scores != others


@pytest.mark.full
@pytest.mark.parametrize("protocol", ["chain-of-step", "best-of-n", "step-beam"])
def test_a_search_without_one_chain_is_an_error(chained, own, checkpoints, tmp_path, protocol, capsys):
    """An untrained policy writes none; its numbers are written and printed all the same."""
    scorer = ["--process-reward", chained / "scorer"] if protocol != "chain-of-step" else []
    with pytest.raises(SystemExit, match=f"^mmreason evaluate: --protocol {protocol} found no chain of steps on own"):
        evaluate(
            tmp_path, own, "--model", checkpoints("qwen2_5_vl"), "--max-new-tokens", 6, "--protocol", protocol, *scorer
        )
    assert results_of(tmp_path / "own")["counts"]["malformed"] > 0
    assert str(tmp_path / "own/report.html") in capsys.readouterr().out


@pytest.mark.full
def test_a_lora_adapter(checkpoints, own, tmp_path):
    """An adapter that does nothing gives the base's answers, and one that does something others."""
    path = checkpoints("qwen2_5_vl")
    model = get_peft_model(load(path)[0], LoraConfig(r=4, target_modules="all-linear", init_lora_weights=True))
    model.save_pretrained(tmp_path / "nothing")
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.fill_(0.1)
    model.save_pretrained(tmp_path / "something")
    said = {}
    for name, adapter in {"base": [], **{a: ["--adapter", tmp_path / a] for a in ("nothing", "something")}}.items():
        folder = evaluate(tmp_path / name / "out", own, "--model", path, "--max-new-tokens", 6, *adapter)
        said[name] = (folder / "samples.jsonl").read_text()
    assert said["base"] == said["nothing"] != said["something"]


@pytest.mark.full
def test_a_server_gives_what_the_model_gives_in_this_process(checkpoints, own, tmp_path):
    path = checkpoints("qwen2_5_vl")
    arguments = [own, "--max-new-tokens", 6, "--protocol", "two-turn"]
    here = evaluate(tmp_path / "here", *arguments, "--model", path)
    with chat_server(TransformersEngine(path)) as url:
        there = evaluate(tmp_path / "there", *arguments, "--model", "policy", "--server", url)
    texts = [
        [[turn["text"] for turn in json.loads(line)["turns"]] for line in (folder / "samples.jsonl").open()]
        for folder in (here, there)
    ]
    # The second turn continues sampled tokens here; a server is given text, of which it may make others.
    assert [turns[0] for turns in texts[0]] == [turns[0] for turns in texts[1]]
    assert [len(turns) for turns in texts[0]] == [len(turns) for turns in texts[1]]
    assert results_of(there)["settings"]["engine"]["kind"] == "server"


@pytest.fixture
def transformers_serve(checkpoints, tmp_path):
    """Path of a model, and the address of `transformers serve` with it: LLaVA-NeXT, which needs no torchvision."""
    path = checkpoints("llava_next")
    command = [Path(sys.executable).with_name("transformers"), "serve", path]
    with serving(command, tmp_path / "served.txt", "/health") as url:
        yield path, f"{url}/v1"


@pytest.mark.full
def test_transformers_serve_gives_what_the_model_gives_in_this_process(transformers_serve, own, tmp_path, caplog):
    path, url = transformers_serve

    def texts(folder, *arguments):
        folder = evaluate(tmp_path / folder, own, "--model", path, "--max-new-tokens", 6, *arguments)
        return [json.loads(line)["turns"][0]["text"] for line in (folder / "samples.jsonl").open()]

    here, there = texts("here"), texts("there", "--server", url)
    assert len(here) == 9
    for mine, theirs in zip(here, there, strict=True):
        assert theirs.startswith(mine)  # the miniature ends with tokens that are not special, which the server shows
    # The checkpoint's own settings are greedy, and not those that are asked for.
    assert len(set(texts("several", "--server", url, "--n", "4", "--limit", "1"))) > 1
    assert caplog.text == ""


@pytest.mark.full
def test_a_search_on_a_server_counts_the_tokens_of_all_candidates(chained, tmp_path):
    """Of several samples a server tells how many tokens each has only when asked for their ids."""
    path = str(chained / "policy")
    tokenizer = AutoTokenizer.from_pretrained(path)
    with chat_server(TransformersEngine(path)) as url:
        folder = evaluate(
            tmp_path, f"sums={chained / 'test.parquet'}", "--model", "policy", "--server", url,
            "--protocol", "step-beam", "--process-reward", chained / "scorer", "--n", 4, "--max-new-tokens", 48,
        )  # fmt: skip
    for sample in map(json.loads, (folder / "samples.jsonl").open()):
        kept = tokenizer(sample["turns"][0]["text"]).input_ids
        assert sample["tokens"] > 2 * len(kept)


def finished(path):
    """How many answers and verdicts a store holds."""
    if not path.is_file():
        return 0
    try:
        with Store(path) as store:
            return sum(len(store.finished(stage)) for stage in store.stages() if not stage.endswith("-questions"))
    except StoreError:  # it is being made
        return 0


@pytest.mark.full
def test_killed_at_random_moments_it_ends_alike(checkpoints, own, tmp_path):
    moments = random.Random(0)
    arguments = [own, "--model", checkpoints("qwen2_5_vl"), "--n", "6", "--max-new-tokens", "6", "--batch-size", "2"]
    undisturbed = files_of(evaluate(tmp_path / "undisturbed", *arguments))
    whole = finished(tmp_path / "undisturbed" / "own" / "answers.sqlite")
    assert whole == 2 * 9 * 6
    store, seen = tmp_path / "killed" / "own" / "answers.sqlite", []
    for _ in range(5):
        enough = finished(store) + moments.randint(1, 20)
        process = begin("helpers/paced_command_run.py", "evaluate", *arguments, "--output", str(tmp_path / "killed"))
        while process.is_alive() and finished(store) < enough:
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.01))
        process.kill()
        process.join()
        seen.append(finished(store))
    assert len({count for count in seen if 0 < count < whole}) >= 2, seen
    assert files_of(evaluate(tmp_path / "killed", *arguments)) == undisturbed


@pytest.mark.full
def test_two_processes_are_one(checkpoints, own, tmp_path):
    arguments = [own, "--model", checkpoints("qwen2_5_vl"), "--n", "2", "--max-new-tokens", "6"]
    alone = files_of(evaluate(tmp_path / "alone", *arguments))
    launch("helpers/command_run.py", 2, "evaluate", *arguments, "--output", str(tmp_path / "together"))
    assert files_of(tmp_path / "together" / "own") == alone


def test_what_is_wrong_with_rows_or_model_is_said_in_a_line(own, tmp_path):
    (tmp_path / "twice.jsonl").write_text('{"id": "a", "prompt": "1+1?", "answer": "2"}\n' * 2)
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(SystemExit, match="empty.jsonl' is empty; expected rows"):
        evaluate(tmp_path / "out", f"own={tmp_path / 'empty.jsonl'}", "--model", "nowhere")
    with pytest.raises(SystemExit, match="there is no folder /nowhere; give one with a model, or a Hub id"):
        evaluate(tmp_path / "out", own, "--model", "/nowhere")
    with pytest.raises(SystemExit, match="ids must be unique, or results could not be told apart: 'a' \\(2 times\\)"):
        evaluate(tmp_path / "out", f"own={tmp_path / 'twice.jsonl'}", "--model", "/nowhere")
    with pytest.raises(SystemExit, match="--split has no effect here, as .*twice.jsonl is one split"):
        evaluate(tmp_path / "out", f"own={tmp_path / 'twice.jsonl'}", "--model", "nowhere", "--split", "val")


def test_a_benchmark_that_came_twice_is_refused(own, tmp_path):
    with pytest.raises(SystemExit, match="own given more than once; each needs its own folder"):
        main(["evaluate", own, own, "--model", "nowhere", "--output", str(tmp_path)])


def test_rows_that_cannot_be_used_are_not_left_out(checkpoints, tmp_path):
    (tmp_path / "test.jsonl").write_text('{"prompt": "1+1?", "answer": "2"}\n{"prompt": "", "answer": "2"}\n')
    with pytest.raises(SystemExit, match="1 of 2 rows cannot be used"):
        evaluate(tmp_path / "out", f"own={tmp_path / 'test.jsonl'}", "--model", "nowhere")
