"""The paper's two prompts (appendix D), the judge's message, and the parser of its reply."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

from ..grading.extraction import without_thinking
from ..jobs.asking import MalformedReply, json_object
from ..messages import quoted

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

_TAG = re.compile(r"\[(?=(?:BEGIN|END) (?:THOUGHT|SCORES)\])", re.IGNORECASE)
_BEGIN, _END = "[BEGIN SCORES]", "[END SCORES]"


def judge_message(prompt: str, question: str, response: str, special_tokens: Collection[str] = ()) -> str:
    """Write the judge's prompt about one response, which can neither imitate the judge nor end the prompt.

    Args:
        prompt: what is asked of the judge.
        question: what the policy was asked.
        response: what it answered. The judge's tags in it lose their bracket.
        special_tokens: special tokens of the judge's tokenizer; in the response they are broken up, as `<image>` is.
    """
    shown = quoted(_TAG.sub("(", response))
    for token in special_tokens:
        shown = shown.replace(token, f"{token[0]} {token[1:]}")
    return f"{prompt}\n\nQuestion:\n{question}\n\nCandidate solution:\n{shown}"


def read_score(reply: str) -> float:
    """Parse s from the judge's reply: the weighted sum of its three parts; a stated sum is ignored.

    Raises:
        MalformedReply: after the judge's thoughts there is not one block of scores, it is no JSON, or a part is
            missing or not in [0, 1].
    """
    spoken = without_thinking(reply) or ""
    if spoken.count(_BEGIN) > 1:
        raise MalformedReply("scores more than once")
    block, end, _ = spoken.partition(_BEGIN)[2].partition(_END)
    if not end:
        raise MalformedReply("no scores")
    scores = json_object(block.strip().removeprefix("```json").strip("`"))
    for name in WEIGHTS:
        score = scores.get(name)
        if isinstance(score, bool) or not isinstance(score, int | float):
            raise MalformedReply(f"no {name}")
        if not 0 <= score <= 1:
            raise MalformedReply(f"{name} out of range")
    return math.fsum(weight * scores[name] for name, weight in WEIGHTS.items())
