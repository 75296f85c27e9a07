"""Rows of AI2D and ChartQA, in the columns and types in which they are published."""

from datasets import ClassLabel

from benchmark_rows.layout import BLUE, GREEN, PICTURE, RED, TEXT, TEXTS, Asked, Layout

_TOLERANCE = {"relative": 0.05, "as_text": True}

LAYOUTS = {
    "ai2d": Layout(
        features={"question": TEXT, "options": TEXTS, "answer": TEXT, "image": PICTURE},
        rows=[
            {"question": "Which label is the eye?", "options": ["A", "C", "B", "D"], "answer": "1", "image": RED},
            {"question": "What eats grass?", "options": ["fox", "hare"], "answer": "1", "image": BLUE},
        ],
        asked=[
            Asked(
                id="ai2d-0",
                prompt="Which label is the eye?\n(A) A\n(B) C\n(C) B\n(D) D",
                answer="B",
                right="(B)",
                wrong="(A)",
            ),
            Asked(
                id="ai2d-1",
                prompt="What eats grass?\n(A) fox\n(B) hare",
                answer="B",
                right="hare",
                wrong="A",
                pictures=["blue"],
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
            {"image": RED, "query": "What is the highest value?", "label": ["100"], "human_or_machine": 0},
            {
                "image": BLUE,
                "query": "Which colour is the tallest bar?",
                "label": ["Light Blue"],
                "human_or_machine": 1,
            },
            {"image": GREEN, "query": "Which quarter was best?", "label": ["Q1 2019"], "human_or_machine": 0},
            {"image": GREEN, "query": "Which age group is smallest?", "label": ["65+"], "human_or_machine": 0},
            {"image": GREEN, "query": "Which age group is largest?", "label": ["18-24"], "human_or_machine": 0},
        ],
        asked=[
            Asked(
                id="chartqa-0",
                prompt="What is the highest value?",
                answer="100",
                right="104.9",
                wrong="106",
                category="human",
                tolerance=_TOLERANCE,
            ),
            Asked(
                id="chartqa-1",
                prompt="Which colour is the tallest bar?",
                answer="Light Blue",
                right="light blue",
                wrong="blue",
                category="augmented",
                tolerance=_TOLERANCE,
                pictures=["blue"],
            ),
            *(
                Asked(
                    id=f"chartqa-{number}",
                    prompt=f"Which {asked}?",
                    answer=gold,
                    right=right,
                    wrong=wrong,
                    category="human",
                    tolerance=_TOLERANCE,
                    pictures=["lime"],
                )
                for number, asked, gold, right, wrong in (
                    (2, "quarter was best", "Q1 2019", "q1 2019", "Q1 2018"),
                    (3, "age group is smallest", "65+", "65+", "65"),
                    (4, "age group is largest", "18-24", "18-24", "-6"),
                )
            ),
        ],
        needed="label",
        named="'label' or 'answer'",
        picture="image",
    ),
}
