"""SRPO's cold-start data: what each party is told, what is dropped and why, and that a killed run resumes."""

import json
import re
from dataclasses import fields

import pytest
from datasets import Dataset
from scripted import Scripted, image, questions_of, reds
from support import sft_trainer

from trl_mmreason.generation import Failure, Sample, SamplingParams
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.jobs.store import SettingsChanged, Store
from trl_mmreason.miniature.tasks import make_dataset
from trl_mmreason.srpo import prompts
from trl_mmreason.srpo.cold_start import REFLECTIONS, ReflectionMaking, make_reflections
from trl_mmreason.srpo.response import parse_reflection_response


def solved(cot, answer):
    return f"<think>{cot}</think>\n<answer>{answer}</answer>"


# question → what the policy replies, the gold answer, and why it comes to nothing
SCRIPT = {
    "right": (solved("right", "7"), "7", None),
    "wrong": (solved("wrong", "8"), "7", None),
    "right in words": (solved("right in words", r"It is $\boxed{7.0}$."), ["7", "seven"], None),
    "chatty": (solved("chatty", "8") + "\nDone. <answer>7</answer>", "7", None),  # what follows the first is left out
    "long": (Sample(solved("long", "7"), "length"), "7", "answer: cut by the length limit"),
    "no think": ("<answer>7</answer>", "7", "answer: no <think>, or an empty one"),
    "no answer": ("<think>no answer</think>", "7", "answer: no <answer>, or an empty one"),
    "blank": (solved("blank", " "), "7", "answer: no <answer>, or an empty one"),
    "late": ("Well: " + solved("late", "7"), "7", "answer: does not begin with <think>…</think><answer>…</answer>"),
    "tag": (solved("as </reflection> says", "7"), "7", "answer: a tag inside <think> or <answer>"),
    "broken": (Failure("the image is too large"), "7", "answer: sampling failed"),
    "no gold": (solved("no gold", "7"), "", "the gold answer cannot be used"),
    "tagged gold": (solved("tagged gold", "7"), "a <think> tag", "the gold answer holds a tag"),
}
USABLE = ["right", "wrong", "right in words", "chatty"]


def policy():
    return Scripted(lambda request, times: SCRIPT[request.messages[-1]["content"]][0])


def cot_of(request):
    return re.search(r"(?:Original Chain of Thought|Reasoning): (.*)", request.messages[-1]["content"])[1]


def teacher(**replies):
    """Reflects on each reasoning; `replies`: reasoning → what comes first, second, …"""

    def answer(request, times):
        cot = cot_of(request)
        return replies[cot][times] if cot in replies else json.dumps({"reflection": f"About {cot}."})

    return Scripted(answer)


def scorer(**scores):
    return Scripted(lambda request, times: json.dumps({"score": scores[cot_of(request)]}))


def questions(names=SCRIPT):
    rows = [
        {
            "id": name,
            "prompt": [{"role": "user", "content": name}],
            "answer": SCRIPT[name][1] if isinstance(SCRIPT[name][1], list) else [SCRIPT[name][1]],
            "images": [image(index)] * (index % 3),
        }
        for index, name in enumerate(SCRIPT)
        if name in names
    ]
    return questions_of(rows)


def made(path, names=USABLE, policy_=None, teacher_=None, **settings):
    known = {field.name for field in fields(ReflectionMaking)}
    making = {name: settings.pop(name) for name in known & settings.keys()}
    with Store(path) as store:
        return make_reflections(
            questions(names),
            policy_ or policy(),
            teacher_ or teacher(),
            store,
            ReflectionMaking(**{"right_share": 0.5, **making}),
            **{"batch_size": 3, **settings},
        )


def test_each_answer_becomes_a_row_or_is_counted(tmp_path):
    reflections = made(tmp_path / "s.sqlite", SCRIPT)
    assert reflections.rows["id"][:] == [f"{name}#0" for name in USABLE]
    reasons = [reason for _, _, reason in SCRIPT.values() if reason]
    assert reflections.dropped == {reason: reasons.count(reason) for reason in reasons}
    assert str(reflections).splitlines()[0] == "kept 4 of 13 answers"
    assert "dropped 2: answer: no <answer>, or an empty one" in str(reflections).splitlines()
    right = reflections.rows[2]
    assert [reds(row["images"]) for row in reflections.rows] == [[], [1], [2, 2], []]
    del right["images"]
    assert right == {
        "id": "right in words#0",
        "prompt": [{"role": "system", "content": prompts.SFT_PROMPT}, {"role": "user", "content": "right in words"}],
        "completion": "<think>right in words</think>\n<answer>It is $\\boxed{7.0}$.</answer>\n"
        "<reflection>About right in words.</reflection>\n<answer>7</answer>",
        "first_correct": True,
        "rating": None,
    }
    assert reflections.rows["first_correct"][:] == [True, False, True, False]
    for completion in reflections.rows["completion"]:
        assert parse_reflection_response(completion).problem == "missing <think> of the second solution"


def test_rows_of_single_images_keep_them(tmp_path):
    """`image` is taken for `images`, and is seen by policy and teacher."""
    rows = [{**row, "image": image(7)} for row in questions(["wrong"]).remove_columns("images")]
    party = teacher()
    with Store(tmp_path / "s.sqlite") as store:
        reflections = make_reflections(Dataset.from_list(rows), policy(), party, store, ReflectionMaking(right_share=0))
    assert [reds(request.images) for request in party.asked] == [[7]]
    assert reds(row["image"] for row in reflections.rows) == [7]


def test_what_is_made_can_be_trained_on(tmp_path, checkpoints):
    rows = made(tmp_path / "s.sqlite").rows
    sft_trainer(checkpoints("qwen2_5_vl"), tmp_path / "run", rows, per_device_train_batch_size=2, max_steps=1).train()


def test_a_second_thought_stands_before_the_last_answer(tmp_path):
    reply = json.dumps({"reflection": "No.", "think": "Count again."})
    asked = Scripted(lambda request, times: reply)
    row = made(tmp_path / "s.sqlite", ["wrong"], teacher_=asked, right_share=0, second_thought=True).rows[0]
    assert row["completion"] == (
        "<think>wrong</think>\n<answer>8</answer>\n<reflection>No.</reflection>\n<think>Count again.</think>\n"
        "<answer>7</answer>"
    )
    assert parse_reflection_response(row["completion"]).problem is None
    assert 'a "reflection" and a "think" field' in asked.asked[0].messages[-1]["content"]


def test_the_true_answer_reaches_the_teacher_alone(tmp_path):
    """The marker is searched in all that is said to each party, and in each part of a row."""
    gold = "GOLD-73129"
    rows = questions(USABLE).remove_columns("answer").add_column("answer", [gold] * len(USABLE))
    parties = policy(), Scripted(lambda request, times: '{"score": 5}'), teacher()
    with Store(tmp_path / "s.sqlite") as store:
        reflections = make_reflections(
            rows, parties[0], parties[2], store, ReflectionMaking(right_share=0, n=2), scorer=parties[1]
        )
    told = [[gold in repr(request) for request in party.asked] for party in parties]
    assert told == [[False] * 8, [False] * 8, [True] * 8]
    assert len(reflections.rows) == 8
    for row in reflections.rows:
        completion = row.pop("completion")
        assert gold not in repr(row)
        assert completion.endswith(f"\n<answer>{gold}</answer>")
        assert completion.count(gold) == 1
        assert parse_reflection_response(completion).first_answer in ("7", "8", r"It is $\boxed{7.0}$.")


def test_every_party_sees_question_and_images(tmp_path):
    parties = policy(), scorer(wrong=5), teacher()
    with Store(tmp_path / "s.sqlite") as store:
        make_reflections(
            questions(["wrong"]),
            parties[0],
            parties[2],
            store,
            ReflectionMaking(right_share=0, cot_prompt="Solve."),
            scorer=parties[1],
        )
    [solve], [rate], [reflect] = (party.asked for party in parties)
    assert solve.messages == [{"role": "system", "content": "Solve."}, {"role": "user", "content": "wrong"}]
    assert rate.messages == [{"role": "user", "content": prompts.scorer_prompt("wrong", "wrong")}]
    assert reflect.messages == [
        {"role": "system", "content": prompts.TEACHER_SYSTEM_PROMPT},
        {"role": "user", "content": prompts.teacher_prompt("wrong", "wrong", "8", "7")},
    ]
    assert reds(solve.images) == reds(rate.images) == reds(reflect.images) == [1]


def test_a_scorer_that_reads_text_only_is_shown_no_images(tmp_path):
    rate = scorer(wrong=5)
    made(tmp_path / "s.sqlite", ["wrong"], scorer=rate, scorer_sees_images=False, right_share=0)
    [asked] = rate.asked
    assert not asked.images


def test_a_store_of_more_questions_and_other_settings(tmp_path):
    path = tmp_path / "s.sqlite"
    made(path, scorer=scorer(**dict.fromkeys(["right", "right in words", "wrong", "chatty"], 5)))
    fewer = made(path, ["right", "wrong"])  # what the store holds of the others is not looked at
    assert fewer.rows["id"][:] == ["right#0", "wrong#0"]
    assert fewer.dropped == {}
    with pytest.raises(SettingsChanged, match="images"):
        made(path, scorer=scorer(right=5), scorer_sees_images=False)


def test_what_failed_is_asked_again_when_told_to(tmp_path):
    path = tmp_path / "s.sqlite"
    broken = teacher(wrong=[Failure("401")] * 3)
    assert made(path, ["right", "wrong"], teacher_=broken).rows["id"][:] == ["right#0"]
    assert made(path, ["right", "wrong"]).rows["id"][:] == ["right#0"]
    assert made(path, ["right", "wrong"], retry_failed=True).rows["id"][:] == ["right#0", "wrong#0"]


def test_the_best_rated_are_reflected_on_and_the_rest_is_counted(tmp_path):
    ratings = {"right": 3, "right in words": 9, "wrong": 8, "chatty": 2}
    asked = teacher()
    reflections = made(tmp_path / "s.sqlite", teacher_=asked, scorer=scorer(**ratings), size=2)
    assert reflections.rows["id"][:] == ["wrong#0", "right in words#0"]
    assert reflections.rows["rating"][:] == [8.0, 9.0]
    assert reflections.dropped == {"left over by size and mix": 2}
    assert len(asked.asked) == 2


def test_malformed_replies_are_asked_for_again_with_another_seed_and_then_counted(tmp_path):
    good = '{"reflection": "good"}'
    asked = teacher(
        right=["?", Sample(good, "length"), good],
        wrong=["?", Failure("busy"), "[]"],
        chatty=["?", "?", Failure("too long: 4097 tokens")],
    )
    rate = Scripted(lambda request, times: '{"score": 4}' if "words" not in cot_of(request) and times == 1 else "four")
    reflections = made(tmp_path / "s.sqlite", teacher_=asked, scorer=rate, right_share=1 / 3)
    assert reflections.rows["completion"][:] == [
        "<think>right</think>\n<answer>7</answer>\n<reflection>good</reflection>\n<answer>7</answer>"
    ]
    assert reflections.dropped == {
        "rating: malformed reply: no JSON": 1,
        "reflection: malformed reply: no JSON object": 1,
        "reflection: sampling failed": 1,
    }
    assert len(asked.asked) == len({request.seed for request in asked.asked}) == 9
    assert len(rate.asked) == len({request.seed for request in rate.asked}) == 3 * 2 + 3
    with Store(tmp_path / "s.sqlite") as store:
        assert store.failed(REFLECTIONS)["chatty#0", 0] == "too long: 4097 tokens"

    once = teacher(wrong=["?"])
    made(tmp_path / "once.sqlite", ["wrong"], teacher_=once, right_share=0, attempts=1)
    assert len(once.asked) == 1


@pytest.mark.parametrize("party", ["policy", "scorer", "teacher"])
def test_it_resumes_where_it_was_killed_and_asks_nothing_twice(tmp_path, party):
    def parties():
        return {"policy": policy(), "scorer": Scripted(lambda request, times: '{"score": 5}'), "teacher": teacher()}

    def run(path, parties):
        return made(path, USABLE, parties["policy"], parties["teacher"], scorer=parties["scorer"], batch_size=1)

    whole = parties()
    undisturbed = run(tmp_path / "undisturbed.sqlite", whole)
    dying = parties()
    dying[party].dies_at = 2
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "s.sqlite", dying)
    rest = parties()
    resumed = run(tmp_path / "s.sqlite", rest)
    assert resumed.rows.to_list() == undisturbed.rows.to_list()
    assert resumed.dropped == undisturbed.dropped
    for name, engine in whole.items():
        assert [r.messages for r in dying[name].asked + rest[name].asked] == [r.messages for r in engine.asked]
        assert [r.seed for r in dying[name].asked + rest[name].asked] == [r.seed for r in engine.asked]


def test_more_rows_ask_only_for_what_is_missing(tmp_path):
    first = made(tmp_path / "s.sqlite", size=2)
    again, more = policy(), teacher()
    second = made(tmp_path / "s.sqlite", policy_=again, teacher_=more, size=4)
    assert first.rows.to_list() == second.rows.to_list()[:2]
    assert [cot_of(request) for request in more.asked] == ["right in words", "chatty"]
    assert again.asked == []
    assert len(made(tmp_path / "s.sqlite", n=2).rows) == 8
    assert made(tmp_path / "s.sqlite", n=1).rows.to_list() == second.rows.to_list()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"cot_prompt": "Solve."}, "system_prompt: "),
        ({"sampling_params": SamplingParams(max_new_tokens=5)}, "sampling_params.max_new_tokens: 1024 → 5"),
        ({"seed": 1}, "seed: 0 → 1"),
        ({"teacher_sampling_params": SamplingParams(temperature=0.5)}, "sampling_params.temperature: 1.0 → 0.5"),
        ({"second_thought": True}, "messages.user: "),
        ({"policy_": Scripted(None, "other")}, "engine.kind: 'script' → 'other'"),
        ({"teacher_": Scripted(None, "other")}, "engine.kind: 'script' → 'other'"),
    ],
)
def test_other_settings_are_refused(tmp_path, settings, named):
    made(tmp_path / "s.sqlite", ["wrong"])
    with pytest.raises(SettingsChanged, match=re.escape(named)):
        made(tmp_path / "s.sqlite", ["wrong"], **settings)


def test_system_messages_are_refused_or_kept(tmp_path):
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "wrong"}]
    rows = Dataset.from_list([{"id": "a", "prompt": prompt, "answer": "7"}])
    with Store(tmp_path / "s.sqlite") as store:
        for one in ({}, {"cot_prompt": None}, {"system_prompt": None}):
            asked = policy()
            with pytest.raises(ValueError, match=r"row 'a' has a system message.*cot_prompt=None and system_prompt=No"):
                make_reflections(rows, asked, teacher(), store, ReflectionMaking(**one))
            assert asked.asked == []
        asked = policy()
        bare = ReflectionMaking(cot_prompt=None, system_prompt=None, right_share=0)
        kept = make_reflections(rows, asked, teacher(), store, bare)
    assert asked.asked[0].messages == kept.rows[0]["prompt"] == prompt
    assert kept.rows.column_names == ["id", "prompt", "completion", "first_correct", "rating"]


def test_what_is_out_of_range_is_refused_before_anything_is_asked(tmp_path):
    for wrong in ({"attempts": 0}, {"size": 0}, {"right_share": 30}):
        asked = policy()
        with pytest.raises(ValueError, match=next(iter(wrong))):
            made(tmp_path / "s.sqlite", policy_=asked, **wrong)
        assert asked.asked == []


def test_a_real_policy_that_knows_no_format_makes_no_rows(tmp_path, checkpoints):
    rows = make_dataset(["adding"], 3, seed=0)
    asked = teacher()
    with Store(tmp_path / "s.sqlite") as store:
        engine = TransformersEngine(checkpoints("qwen2_5_vl"))
        sampling_params = SamplingParams(max_new_tokens=4)  # fewer than a solution has tags
        reflections = make_reflections(
            rows, engine, asked, store, ReflectionMaking(n=2, sampling_params=sampling_params)
        )
        records = list(store.records("srpo-answers"))
    assert len(reflections.rows) == 0
    assert reflections.rows.column_names == ["id", "prompt", "images", "completion", "first_correct", "rating"]
    cut = sum("length" in record.payload["finish_reasons"] for record in records)
    expected = {"answer: cut by the length limit": cut, "answer: no <think>, or an empty one": 6 - cut}
    assert reflections.dropped == {reason: times for reason, times in expected.items() if times}
    assert asked.asked == []
    reflections.rows.to_parquet(tmp_path / "empty.parquet")
