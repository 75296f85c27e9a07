"""SOPHIA's policy and reasoners by a script, and the data that is made with them.

The policy's caption k of question "q" reads "caption k of q", as questions are told apart by the red of their image.
The reasoner answers as a script says: question → caption → its trajectories.
"""

import re
from dataclasses import fields

import pytest
from scripted import Scripted, image, questions_of, reds, said

from trl_mmreason.jobs.store import Store
from trl_mmreason.sophia.sampling import OffPolicySampling, make_off_policy_data

NAMES = ["cats", "dogs", "owls", "bees"]


def right(length):
    """A right trajectory of so many tokens, one a character."""
    return r"\boxed{7}".rjust(length, "r")


def wrong(length):
    return r"\boxed{8}".rjust(length, "w")


WORKED = [  # caption A: 7 of 8 right, the shortest of 30; caption B: 6 of 8, the shortest of 20
    [right(30 + 10 * n) for n in range(7)] + [wrong(10)],
    [right(20 + 10 * n) for n in range(6)] + [wrong(10)] * 2,
]


def questions(names=("cats",), *, answers=None, images=None, category="counting"):
    rows = [
        {
            "id": f"id of {name}",
            "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"How many {name}?"}],
            "answer": (answers or {}).get(name, "7"),
            "images": [image(NAMES.index(name))] * (images or {}).get(name, 1),
            "category": category if isinstance(category, str) else category[name],
        }
        for name in names
    ]
    return questions_of(rows)


def with_prompt(prompt):
    """One question, in whatever form."""
    return questions().remove_columns("prompt").add_column("prompt", [prompt])


def name_of(request):
    return NAMES[reds(request.images)[0]]


def policy(**settings):
    def describe(request, times):
        number = sum(name_of(old) == name_of(request) for old in engine.asked)
        return f"caption {number} of {name_of(request)}"

    engine = Scripted(describe, **settings)
    return engine


def place_of(request):
    """The question's name and the caption's number that a reasoner is asked about."""
    found = re.search(
        r"How many (\w+)\?\nVisual information:\ncaption (\d) of (\w+)\n\nYour response:$", said(request)[0]
    )
    assert found[1] == found[3]
    return found[1], int(found[2])


def reasoner(script=WORKED, **settings):
    """`script`: caption → trajectories, for all questions or for each by its name."""

    def answer(request, times):
        name, caption = place_of(request)
        return (script[name] if isinstance(script, dict) else script)[caption][times]

    return Scripted(answer, **{"kind": "reasoner", **settings})


def made(path, rows=None, policy_=None, reasoner_=None, **settings):
    names = {field.name for field in fields(OffPolicySampling)}
    sampling = {name: settings.pop(name) for name in names & settings.keys()}
    with Store(path) as store:
        return make_off_policy_data(
            rows or questions(),
            policy_ or policy(),
            reasoner_ or reasoner(),
            store,
            OffPolicySampling(**{"captions": 2, "trajectories": 8, **sampling}),
            **{"batch_size": 3, **settings},
        )


def idle():
    """One who is asked nothing."""
    return Scripted(lambda request, times: pytest.fail("asked again"), kind="reasoner")


def idle_large():
    return Scripted(lambda request, times: pytest.fail("asked again"), kind="large reasoner")


def selected(path, rows=None, **settings):
    """The ids of what is rewarded, of a store that holds all that is needed."""
    quiet = Scripted(lambda request, times: pytest.fail("asked again"))
    data = made(path, rows, quiet, idle(), **settings)
    return [id_.partition("#")[2] for id_, reward in zip(data.rows["id"], data.rows["reward"], strict=True) if reward]
