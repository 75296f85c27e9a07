"""SOPHIA's prompts for policy and reasoner, and its system message of training (arXiv:2507.16814, appendix E).

The paper's prompts stand here word for word, without its typography.
"""

from __future__ import annotations

import re
from typing import Any

from ..messages import with_system_message

MAX_TOKENS = 32768
"""Bound of a caption and of a trajectory, as Fig. A4 has it (appendix B.1 says 32678, with two digits swapped)."""

THINK, END_OF_THINK = "<think>", "</think>"

CAPTION_PROMPT = """\
Provide a highly detailed and precise description of every visible element within the image, capturing all visual and textual aspects exactly as they appear.

For images containing text, thoroughly extract and transcribe all visible words, symbols, numbers and time, including labels, annotations, legends, and numerical values. Pay close attention to font style, size, color, and positioning of each text element. Describe any formatting or emphasis, such as bold or italic text, and note any alignment or proximity between text elements.

For the connections between nodes, describe the type of line or arrow used, its direction, and any associated labels, symbols, or annotations that clarify the meaning of the relationship. If there are multiple types of connections, make sure to distinguish between them and describe how they are represented visually (e.g., solid vs. dashed lines, different colors, or arrowheads). Provide context for the meaning of each connection, especially in terms of the relationships or interactions they represent between the nodes.

If the image includes any type of statistical chart or graph, such as bar charts, line charts, scatter plots, pie charts, or any other type of diagram, describe each element in detail. For geometric shapes, lines, points, or bars, specify their labels, colors, positions, and exact measurements or values when visible. For bar charts, include each bar's label, color, height or value, category labels, legends, and axis labels, carefully noting the numerical scale on the axes and any increments or intervals. For line charts, detail the data points, lines, their color, and any markers or trends, indicating the specific values at key positions, note that every data point should be interpreted with numerical value. For scatter plots, describe each point's position, color, and any patterns or clusters. For pie charts, describe each segment's label, color, proportion, and the percentage or value it represents. Always ensure that any numerical scale, axis labels, and unit measurements are clearly noted, including any legends or other graphical annotations that may aid in understanding the data.

In complex scenes, describe every object in exhaustive detail, thoroughly extract and transcribe all visible words, symbols, numbers and time, noting its color, texture, shape, size, and relative position within the scene. Start with the objects in the foreground and gradually move towards the background, maintaining a clear and logical sequence. Provide information on spatial arrangements, including any overlapping, layering, or alignment among objects. Mention any shadows, highlights, or lighting effects that influence the appearance of objects. When describing the background, include its color, patterns, or gradients, and any additional visual elements that contribute to the scene, ensuring that the focus shifts progressively from the front to the back. This methodical, from-front-to-back approach will help provide a coherent and structured visualization of the scene.

If the image depicts realistic human figures, provide a detailed description of each individual's posture, physical appearance, clothing, facial expressions, and interactions with the surroundings. If the image includes well-known figures, make every effort to identify them by their facial features, attire, or contextual clues. If identification is uncertain, describe potential characteristics or identity hints in detail.

Lastly, aim to describe the image as comprehensively as possible, ensuring no detail is overlooked. Capture every nuance in the image, providing an accurate, in-depth account of each element and its precise attributes, arrangement, and interactions within the scene."""  # noqa: E501 - the paper's own lines
"""Fig. A2: what the policy is asked about an image. It says nothing of the question, which would be answered."""

# The typing errors of the paper's "***Final answer**" and "boxed{ }" are fixed, or a reasoner would repeat them.
REASONING_PROMPT = r"""Please read the following example carefully.

<Begin of example>
Question: {example_question}
Visual information:
{example_caption}

Your response:
{example_response}
<End of example>

Offer a comprehensive breakdown of your analytical process based on the given visual information, detailing each step, the reasoning behind your decisions, and how you integrated various pieces of information. If you find you are overthinking this, you can stop analysis and determine the final answer. If you can directly find answer from visual information, just copy the original text, and no need to explain what is the meaning of the text or provide more context. Present your final answer at the end after "**Final answer**" and wrapped with \boxed{}. You should assume that you can see this image, and you must use 'image' to refer to the visual information.

Question: {question}
Visual information:
{caption}

Your response:"""  # noqa: E501 - the paper's own lines
"""Fig. A3: what makes a text-only reasoner speak as if it saw the image. `reasoning_prompt` fills it in."""

THINKING_PROMPT = f"""\
You are an expert mathematician with extensive experience in mathematical competitions. You approach problems through systematic thinking and rigorous reasoning. When solving problems, follow these thought processes:

Deep Understanding

Take time to fully comprehend the problem before attempting a solution. Consider:

- What is the real question being asked?
- What are the given conditions and what do they tell us?
- Are there any special restrictions or assumptions?
- Which information is crucial and which is supplementary?

Multi-angle Analysis

Before solving, conduct thorough analysis:

- What mathematical concepts and properties are involved?
- Can you recall similar classic problems or solution methods?
- Would diagrams or tables help visualize the problem?
- Are there special cases that need separate consideration?

Systematic Thinking

Plan your solution path:

- Propose multiple possible approaches
- Analyze the feasibility and merits of each method
- Choose the most appropriate method and explain why
- Break complex problems into smaller, manageable steps

Rigorous Proof

During the solution process:

- Provide solid justification for each step
- Include detailed proofs for key conclusions
- Pay attention to logical connections
- Be vigilant about potential oversights

Repeated Verification

After completing your solution:

- Verify your results satisfy all conditions
- Check for overlooked special cases
- Consider if the solution can be optimized or simplified
- Review your reasoning process

Remember:

1. Take time to think thoroughly rather than rushing to an answer
2. Rigorously prove each key conclusion
3. Keep an open mind and try different approaches
4. Summarize valuable problem-solving methods
5. Maintain healthy skepticism and verify multiple times

Your response should reflect deep mathematical understanding and precise logical thinking, making your solution path and reasoning clear to others. When you're ready, present your complete solution with:

- Clear problem understanding
- Detailed solution process
- Key insights
- Thorough verification

Please put your thinking process within <think>...</think> tags.

Provide answers in the same language as the user asking the question. You have **{MAX_TOKENS}** tokens to complete the answer."""  # noqa: E501 - the paper's own lines
"""Fig. A4: system message of the rows whose trajectory thinks in tags."""


# Ours: the paper's was "generated automatically and then refined manually", and is not shown.
EXAMPLE = {
    "example_question": "As shown in the figure, DE is parallel to BC. How long is EC?",
    "example_caption": (
        "The image shows a triangle with the vertices A at the top, B at the bottom left and C at the bottom right. "
        "The point D lies on the side AB and the point E on the side AC. A segment joins D and E; it and the side BC "
        "both bear an arrowhead, which marks them as parallel. Three lengths are written along the sides: 4 between A "
        "and D, 6 between D and B, and 6 between A and E. Nothing is written between E and C."
    ),
    "example_response": (
        r"""The image shows a triangle ABC, cut by a segment DE that is parallel to BC. I need the length of EC.

A line parallel to one side divides the other two in the same ratio, so AD : DB = AE : EC.
In the image I read AD = 4, DB = 6 and AE = 6. Then 4 : 6 = 6 : EC, which gives EC = 6 × 6 / 4 = 9.

Wait, the 6 on the left might belong to the whole side AB. Let me look at the image again.
It is written between D and B, so it is the length of DB alone, and the 4 above it is that of AD. The ratio is right.

To check: AB = 4 + 6 = 10 and AC = 6 + 9 = 15, and 4 / 10 = 6 / 15 = 0.4.

**Final answer** \boxed{9}"""
    ),
}
"""The example in the reasoner's prompt. As the paper's trajectories do, it looks at the image again."""


def reasoning_prompt(question: str, caption: str) -> str:
    """Write the prompt of the reasoner."""
    values = {**EXAMPLE, "question": question, "caption": caption}
    # One pass, so that inserted text is never read as a placeholder; \boxed{} is no placeholder.
    return re.sub(r"\{(\w+)\}", lambda place: values[place[1]], REASONING_PROMPT)


def opened(text: str) -> str:
    """A trajectory with the `<think>` that chat templates such as DeepSeek-R1's write for the reasoner: it is sampled
    after it, and only closes it."""
    thoughts, end, _ = text.partition(END_OF_THINK)
    return f"{THINK}\n{text}" if end and THINK not in thoughts else text


def prompt_for(prompt: Any, completion: str, thinking_prompt: str | None) -> Any:
    """The training prompt of a completion: one that thinks in tags gets `thinking_prompt` as system message.

    Args:
        prompt: messages. A system message of their own, the paper's "default system prompt", is replaced.
        thinking_prompt: `None`: the prompt stays as it is.
    """
    if thinking_prompt is None or (THINK not in completion and END_OF_THINK not in completion):
        return prompt
    spoken = prompt if isinstance(prompt, str) else [message for message in prompt if message["role"] != "system"]
    return with_system_message(spoken, thinking_prompt)
