"""Rows of AI2D and ChartQA, in the columns and types in which they are published."""

from datasets import ClassLabel

from benchmark_rows.layout import BLUE, GREEN, PICTURE, RED, TEXT, TEXTS, Asked, Layout, row, texts

_TOLERANCE = {"relative": 0.05, "as_text": True}
_HUMAN = {"category": "human", "tolerance": _TOLERANCE}

LAYOUTS = {
    "ai2d": Layout(
        features={**texts("question answer"), "options": TEXTS, "image": PICTURE},
        rows=[
            row(question="Which label is the eye?", options=["A", "C", "B", "D"], answer="1", image=RED),
            row(question="What eats grass?", options=["fox", "hare"], answer="1", image=BLUE),
        ],
        asked=[
            Asked("ai2d-0", "Which label is the eye?", "B", right="(B)", wrong="(A)", options="ACBD"),
            Asked(
                "ai2d-1", "What eats grass?", "B", right="hare", wrong="A", options=["fox", "hare"], pictures=["blue"]
            ),
        ],
        needed="options",
        picture="image",
    ),
    "chartqa": Layout(
        features={
            "image": PICTURE,
            "query": TEXT,
            "label": TEXTS,
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
            Asked("chartqa-0", "What is the highest value?", "100", right="104.9", wrong="106", **_HUMAN),
            Asked(
                "chartqa-1",
                "Which colour is the tallest bar?",
                "Light Blue",
                right="light blue",
                wrong="blue",
                category="augmented",
                tolerance=_TOLERANCE,
                pictures=["blue"],
            ),
            *(
                Asked(id_, f"Which {asked}?", gold, right=right, wrong=wrong, pictures=["lime"], **_HUMAN)
                for id_, asked, gold, right, wrong in (
                    ("chartqa-2", "quarter was best", "Q1 2019", "q1 2019", "Q1 2018"),
                    ("chartqa-3", "age group is smallest", "65+", "65+", "65"),
                    ("chartqa-4", "age group is largest", "18-24", "18-24", "-6"),
                )
            ),
        ],
        needed="label",
        named="'label' or 'answer'",
        picture="image",
    ),
}
