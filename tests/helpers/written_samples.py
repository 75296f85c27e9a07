"""Samples of an evaluation whose verdicts are written out."""

from trl_mmreason.evaluation.runner import Samples


def sample(*correct, answer="7", **fields):
    """A sample whose turns were found right or wrong (or could not be graded)."""
    verdict = {"text": "so", "answer": answer, "reason": "why", "decided_by": "rules"}
    return {
        "turns": [{**verdict, "correct": each} for each in correct],
        "finish_reasons": ["stop"] * len(correct),
        "tokens": 10,
        **fields,
    }


def samples(*questions, **columns):
    """Questions with the samples of each; `columns` hold one value a question."""
    rows = [
        {"id": f"q{k}", "prompt": [{"role": "user", "content": f"question {k}"}], "answer": "7"}
        | {name: values[k] for name, values in columns.items()}
        for k in range(len(questions))
    ]
    turns = max(len(each["turns"]) for tried in questions for each in tried if isinstance(each, dict))
    return Samples(rows, len(questions[0]), turns, [list(tried) for tried in questions])
