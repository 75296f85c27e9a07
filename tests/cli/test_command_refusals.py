"""What the commands refuse before anything is loaded, asked or written: each in a line, without a traceback."""

import shlex

import pytest

from trl_mmreason.cli.main import main

ANNOTATE = "annotate q.jsonl r.parquet --model m --by monte-carlo"
EVALUATE = "evaluate own=nowhere.jsonl --model nowhere"
PREFILTER = "prefilter q.jsonl r.parquet --model m"
REFLECT = "reflect q.jsonl r.parquet --model m --teacher t"
REVISE = "revise q.jsonl r.parquet --model m"
STEPS = "steps q.jsonl r.parquet --teacher t"
TRAJECTORIES = "trajectories q.jsonl r.parquet --model m --reasoner r"
URL, OTHER_URL = "http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1"
TOGETHER = "--hard-reasoner and --hard-category must be given together"

# what does not fit together, or is not there
REFUSED = [
    (f"{ANNOTATE} --judge j", "--judge has no effect with --by monte-carlo"),
    (f"{ANNOTATE} --judge-server {URL}", "--judge-server needs --judge"),
    (f"{ANNOTATE} --openai-only", "--openai-only needs --judge-server"),
    (f"{ANNOTATE} --by judge", "--by judge needs --judge, the model"),
    (f"{EVALUATE} --n 4 --temperature 0", "--n 4 needs a temperature above 0; greedy samples are all alike"),
    (f"{EVALUATE} --protocol best-of-n --n 1", "--protocol best-of-n needs --n 2 or more, got 1"),
    (
        f"{EVALUATE} --protocol best-of-n",
        "--protocol best-of-n needs --process-reward, which belongs to best-of-n and",
    ),
    (
        f"{EVALUATE} --process-reward m",
        "--protocol direct does not use --process-reward, which belongs to",
    ),
    (f"{EVALUATE} --followup Check.", "--followup has no effect here, as it belongs to --protocol two-turn"),
    (f"{EVALUATE} --max-steps 3", "--max-steps has no effect here, as it belongs to --protocol step-beam"),
    (f"{EVALUATE} --judge-server {URL}", "--judge-server needs --judge"),
    *((f"{command} --openai-only", "--openai-only needs --server") for command in (EVALUATE, PREFILTER, REVISE)),
    (f"{EVALUATE} --judge-extracts-only", "--judge-extracts-only needs --judge"),
    (f"{EVALUATE} --vllm --adapter a", "leave --server and --adapter out"),
    (f"{EVALUATE} --dtype float32", "--dtype has no effect here, as it belongs to --vllm"),
    (f"{EVALUATE} --instruction Think.", "--instruction has no effect here, as rows of your own are asked as they are"),
    (
        """evaluate miniature/adding --model nowhere --columns '{"answer": "solution"}'""",
        "--columns has no effect here, as the columns of miniature/adding are known",
    ),
    (
        "evaluate miniature/adding --model nowhere --video-frames 8",
        "--video-frames has no effect here, as the columns of miniature/adding are known",
    ),
    *(
        (f"{command} --system-prompt ./none.txt", "--system-prompt ./none.txt: there is no such file")
        for command in (ANNOTATE, EVALUATE, PREFILTER, REFLECT, REVISE, STEPS)
    ),
    (f"{REFLECT} --cot-prompt ' '", "--cot-prompt is empty, expected a string, or null for none"),
    (f"{EVALUATE} --system-prompt ' '", "--system-prompt is empty, expected a string, or null for none"),
    (EVALUATE, "'nowhere.jsonl' does not exist here"),
    ("evaluate nowhere --model nowhere", "there is no benchmark 'nowhere'; there are mathvista"),
    (
        "evaluate mathvist --model nowhere",
        "there is no benchmark 'mathvist'; did you mean `mathvista`? There are mathvista, ",
    ),
    ("evaluate nowhere --model nowhere", "For rows of your own: nowhere=FILE"),
    (
        "evaluate data/test.jsonl --model m",
        "'data/test.jsonl' has no name, expected NAME=FILE; write test=data/test.jsonl",
    ),
    ("evaluate ../my.test.parquet --model m", "write my-test=../my.test.parquet"),
    ("evaluate mathvista=copies/math/vista --model m", "mathvista: 'copies/math/vista' does not exist here"),
    ("evaluate ..=rows.jsonl --model nowhere", "'..' cannot be the name of a benchmark"),
    ("merge nowhere --output all", "there is no store nowhere"),
    (f"{PREFILTER} --rule share --low 0.9 --high 0.5", "got --low 0.9 above --high 0.5"),
    (f"{PREFILTER} --low 0.4 --high 0.6", "prefilter: --low belongs to --rule share or srpo; add one of them"),
    (PREFILTER, "'q.jsonl' does not exist here"),
    ("prefilter q.jsonl out.csv --model m", "OUTPUT is 'out.csv', expected a path ending in .parquet"),
    (f"{REFLECT} --scorer-server {URL}", "--scorer-server needs --scorer"),
    (f"{REFLECT} --openai-only", "--openai-only needs --teacher-server or --scorer-server"),
    (f"{REFLECT} --share 0/2", "--share is not supported: the mix"),
    ("report absent", "there is no folder absent"),
    (f"{STEPS} --openai-only", "--openai-only needs --teacher-server"),
    (f"{STEPS} --min_steps 11", "got --min-steps 11 --max-steps 10, expected min ≤ max"),
    (f"{TRAJECTORIES} --hard-reasoner large", TOGETHER),
    (f"{TRAJECTORIES} --hard-category dogs", TOGETHER),
    (f"{TRAJECTORIES} --hard-reasoner-server {URL}", "--hard-reasoner-server needs --hard-reasoner"),
    (f"{TRAJECTORIES} --openai-only", "--openai-only needs --reasoner-server or --hard-reasoner-server"),
    (f"{TRAJECTORIES} --tokenizer ./none", "none"),
]

# a server that is not there is said before the questions, which are not there either
REFUSED += [
    pytest.param(
        f"{command} {options}",
        f"Nothing answers at {URL} (ConnectError). Start the server",
        marks=() if command == EVALUATE else pytest.mark.full,  # it takes a second and a half each
    )
    for command, options in [
        (ANNOTATE, f"--server {URL}"),
        (ANNOTATE.replace("monte-carlo", "judge"), f"--judge j --judge-server {URL}"),
        (EVALUATE, f"--server {URL}"),
        (EVALUATE, f"--judge j --judge-server {URL}"),
        (PREFILTER, f"--server {URL}"),
        (REFLECT, f"--teacher-server {URL}"),
        (REFLECT, f"--scorer j --scorer-server {URL}"),
        (REVISE, f"--server {URL}"),
        (STEPS, f"--teacher-server {URL}"),
        (TRAJECTORIES, f"--reasoner-server {URL}"),
        (TRAJECTORIES, f"--hard-reasoner r --hard-category c --hard-reasoner-server {URL}"),
    ]
]
REFUSED += [
    (
        f"{EVALUATE} --protocol best-of-n --process-reward {URL.removesuffix('/v1')}",
        f"no answer from {URL.removesuffix('/v1')}/v1/models: Connection error. (ConnectError)",
    ),
    (
        f"{PREFILTER} --server {URL} --server {OTHER_URL}",
        f"Nothing answers at {URL} (ConnectError); Nothing answers at {OTHER_URL} (ConnectError). Start",
    ),
]

# what argparse refuses, below the usage
MISREAD = [
    (f"{ANNOTATE} --judge-temperature -1", "argument --judge-temperature: expected a number ≥ 0, got '-1'"),
    *(
        (
            f"{PREFILTER} --share={wrong}",
            f"argument --share: expected K/M with K from 0 to M - 1, as in 0/2 and 1/2; got '{wrong}'",
        )
        for wrong in ("2/2", "1", "-1/2", "a/b")
    ),
    (f"{REFLECT} --right-share 30", "argument --right-share: expected a number from 0 to 1, got '30'"),
    (f"{REFLECT} --teacher-temperature -1", "argument --teacher-temperature: expected a number ≥ 0, got '-1'"),
    (
        f"{REFLECT} --teacher-server localhost/v1",
        "argument --teacher-server: expected an address such as http://127.0.0.1:8000/v1, got 'localhost/v1'",
    ),
    (f"{REFLECT} --columns answer=solution", "argument --columns: expected a JSON object, got 'answer=solution'"),
    (
        f"""{REFLECT} --columns '{{"answer": "a", "answer": "id"}}'""",
        """argument --columns: expected a JSON object, got '{"answer": "a", "answer": "id"}' (`answer` comes twice)""",
    ),
    ("server", "invalid choice: 'server'"),
    (f"{STEPS} --min-steps 0", "argument --min-steps: expected an integer ≥ 1, got '0'"),
    (f"{STEPS} --model policy", "unrecognized arguments: --model policy"),  # there is no policy in this
    (f"{STEPS} --mx_steps 3", "unrecognized arguments: --mx-steps 3; did you mean `--max-steps`?"),
    ("train ppo", "invalid choice: 'ppo'"),
    (f"{TRAJECTORIES} --caption-temperature -1", "--caption-temperature: expected a number ≥ 0, got '-1'"),
    (f"{TRAJECTORIES} --threshold 75", "argument --threshold: expected a number from 0 to 1, got '75'"),
]


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_what_does_not_fit_or_is_not_there(line, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(line))
    assert str(ended.value).startswith(f"mmreason {line.split()[0]}: ")
    assert message in str(ended.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("line", "message"), MISREAD)
def test_what_cannot_be_parsed(line, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(line))
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
