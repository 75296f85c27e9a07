"""The paper's two prompts (appendix D), what the judge is shown, and how its reply is read."""

from __future__ import annotations

import json
import math
import re

from ..sampling.asking import MalformedReply

ACTOR_PROMPT = r"""You must first think through the reasoning process as an internal monologue. The entire reasoning \
process must be fully enclosed within a matching `<think>...</think>` pair, with no text outside these tags.

After the closing `</think>` tag, you must output the final answer in the exact format `\boxed{ANSWER}`.

The `\boxed{ }` must contain only the final answer value, with no additional words, steps, symbols, units, or \
punctuation.

If the required format is not followed **exactly**, the answer is considered invalid.""".replace("\\\n", "")

JUDGE_PROMPT = """You are an expert evaluator for multimodal mathematical reasoning.

All scores must be real numbers in $[0, 1]$.

Evaluation Dimensions:

1. answer_correctness

- 1.0: fully correct
- 0.5–0.9: almost correct
- 0.1–0.4: partial progress
- 0.0: wrong or missing

2. reasoning_quality

- 1.0: rigorous and logical
- 0.5–0.9: minor gaps
- 0.1–0.4: fragmented reasoning
- 0.0: invalid reasoning

3. visual_grounding

- 1.0: correct use of visual elements
- 0.5–0.9: minor misreadings
- 0.1–0.4: partial or incorrect usage
- 0.0: no grounding or hallucination

Overall Score

- answer_correctness: 0.50
- reasoning_quality: 0.30
- visual_grounding: 0.20

Mandatory Validity Rule

If the candidate solution fails to provide a clear and single final answer in the required format, **all scores are \
set to 0.0**.

Judge Output Format

[BEGIN THOUGHT]
<your analysis>
[END THOUGHT]

[BEGIN SCORES]
{
  "answer_correctness": <float>,
  "reasoning_quality": <float>,
  "visual_grounding": <float>,
  "overall_score": <float>
}
[END SCORES]

Only valid JSON enclosed in the above tags is accepted."""

WEIGHTS = {"answer_correctness": 0.5, "reasoning_quality": 0.3, "visual_grounding": 0.2}
"""What the parts of a score count."""

_TAG = re.compile(r"\[(?:BEGIN|END) (?:THOUGHT|SCORES)\]", re.IGNORECASE)
_SCORES = re.compile(r"\[BEGIN SCORES\](.*?)\[END SCORES\]", re.DOTALL)
_FENCE = re.compile(r"\s*```(?:json)?\s*(.*?)\s*```\s*", re.DOTALL)


def judge_message(prompt: str, question: str, response: str) -> str:
    """What the judge is told of one response, without tags by which it would speak in the judge's own voice."""
    return f"{prompt}\n\nQuestion:\n{question}\n\nCandidate solution:\n{_TAG.sub('', response)}"


def read_score(reply: str) -> float:
    """s of a reply of the judge: the weighted sum of its three parts, whatever it says of their sum.

    Raises:
        MalformedReply: there is not one block of scores, it is no JSON, or a part is missing or not in [0, 1].
    """
    blocks = _SCORES.findall(reply)
    if len(blocks) != 1:
        raise MalformedReply("no scores" if not blocks else "scores more than once")
    fenced = _FENCE.fullmatch(blocks[0])
    try:
        scores = json.loads(fenced[1] if fenced else blocks[0])
    except (ValueError, RecursionError) as error:
        raise MalformedReply("no JSON") from error
    if not isinstance(scores, dict):
        raise MalformedReply("no JSON object")
    for name in WEIGHTS:
        score = scores.get(name)
        if isinstance(score, bool) or not isinstance(score, int | float):
            raise MalformedReply(f"no {name}")
        if not math.isfinite(score) or not 0 <= score <= 1:
            raise MalformedReply(f"{name} out of range")
    return math.fsum(weight * scores[name] for name, weight in WEIGHTS.items())
