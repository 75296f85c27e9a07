"""Rows of AI2D and ChartQA, in the columns and types in which they are published."""

from datasets import ClassLabel

from benchmark_rows.layout import BLUE, GREEN, IMAGE, RED, TEXT, TEXTS, Asked, Layout, row, texts

_TOLERANCE = {"relative": 0.05, "as_text": True}
_HUMAN = {"category": "human", "tolerance": _TOLERANCE}

# fmt: off
LAYOUTS = {
    "ai2d": Layout(
        features={**texts("question answer"), "options": TEXTS, "image": IMAGE},
        rows=[
            row(question="Which label is the eye?", options=["A", "C", "B", "D"], answer="1", image=RED),
            row(question="What eats grass?", options=["fox", "hare"], answer="1", image=BLUE),
        ],
        asked=[
            Asked(right="(B)", wrong="(A)", answer="B", id="ai2d-0"),
            Asked(right="hare", wrong="A", answer="B", id="ai2d-1"),
        ],
        columns={"options": "options"},
        needed="options",
        image="image",
    ),
    "chartqa": Layout(
        features={
            "image": IMAGE, "query": TEXT, "label": TEXTS,
            "human_or_machine": ClassLabel(names=["human", "machine"]),
        },
        rows=[
            row(image=RED, query="What is the highest value?", label=["100"], human_or_machine=0),
            row(image=BLUE, query="Which colour is the tallest bar?", label=["Light Blue"], human_or_machine=1),
            row(image=GREEN, query="Which quarter was best?", label=["Q1 2019"], human_or_machine=0),
            row(image=GREEN, query="Which age group is smallest?", label=["65+"], human_or_machine=0),
            row(image=GREEN, query="Which age group is largest?", label=["18-24"], human_or_machine=0),
        ],
        asked=[
            Asked(right="104.9", wrong="106", answer="100", id="chartqa-0", **_HUMAN),
            Asked(
                right="light blue", wrong="blue", answer="Light Blue", id="chartqa-1", category="augmented",
                tolerance=_TOLERANCE,
            ),
            Asked(right="q1 2019", wrong="Q1 2018", answer="Q1 2019", id="chartqa-2", **_HUMAN),
            Asked(right="65+", wrong="65", answer="65+", id="chartqa-3", **_HUMAN),
            Asked(right="18-24", wrong="-6", answer="18-24", id="chartqa-4", **_HUMAN),
        ],
        columns={"question": "query"},
        needed="label",
        named="'label' or 'answer'",
        image="image",
    ),
}
