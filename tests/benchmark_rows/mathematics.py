"""Rows of MathVista, MathVerse and MathVision, in the columns and types in which they are published."""

from dataclasses import replace

from datasets import Value

from benchmark_rows.layout import BLUE, GREEN, NUMBER, PICTURE, RED, TEXT, TEXTS, Asked, Layout, row, texts

_MATHVERSE = {
    "features": {
        **texts("sample_index problem_index problem_version question answer question_type"),
        **texts("query_wo query_cot question_for_eval"),
        "image": PICTURE,
        "metadata": texts("split source subject subfield"),
    },
    "needed": "problem_version",
    "picture": "image",
}
_VERSE_HINT = (
    "Please first conduct reasoning, and then answer the question and provide the correct option letter, e.g., A, B, "
    "C, D, at the end."
)
_ANGLE = "As shown in the figure, what is the size of angle CED ()"
_ANGLE_CHOICES = f"{_ANGLE}\nChoices:\nA:40°\nB:60°\nC:120°\nD:140°"
_VERSE_PROBLEM = {
    "problem_index": "1",
    "answer": "D",
    "question_type": "multi-choice",
    "metadata": {"split": "testmini", "source": "GeoQA", "subject": "Plane Geometry", "subfield": "Angle"},
}
_VERSE_ROWS = [
    {
        **_VERSE_PROBLEM,
        "sample_index": "1",
        "problem_version": "Text Dominant",
        "question": _ANGLE_CHOICES,
        "image": RED,
        "query_cot": f"{_VERSE_HINT}\nQuestion: {_ANGLE_CHOICES}",
    },
    {**_VERSE_PROBLEM, "sample_index": "5", "problem_version": "Vision Only", "question": "", "image": BLUE},
]
_VISION_ONLY = Asked(
    "5",
    "The question is in the picture.",
    "D",
    right="D",
    wrong="B",
    group="1",
    category="Plane Geometry",
    pictures=["blue"],
)
_ONE_PLACE = (
    "Please answer the question requiring a floating-point number with one decimal place and provide the final value, "
    "e.g., 1.2, 1.3, 1.4, at the end."
)
_LETTER = "Please answer the question and provide the correct option letter, e.g., A, B, C, D, at the end."
_WHOLE = (
    "Please answer the question requiring an integer answer and provide the final value, e.g., 1, 2, 3, at the end."
)
_WORDS = ["KNAO", "KNGO", "KNR", "AGRO", "KAO"]
_MATHVISION = {
    "features": {
        **texts("id question image answer solution subject"),
        "options": TEXTS,
        "decoded_image": PICTURE,
        "level": Value("int64"),
    },
    "rows": [
        {"image": f"images/{columns['id']}.jpg", "level": 1, **columns}
        for columns in (
            row(
                id="55",
                question="Which word is formed?\n<image1>",
                options=_WORDS,
                decoded_image=RED,
                answer="C",
                subject="combinatorics",
            ),
            row(
                id="59",
                question="<image1>\nA cube in two positions.\n<image2>\nWhich side is opposite to <image3>?\n<image4>",
                options=list("ABCDE"),
                decoded_image=BLUE,
                answer="C",
                subject="solid geometry",
            ),
            row(
                id="61",
                question="Into how many pieces will the string be cut?\n<image1>",
                options=[],
                decoded_image=GREEN,
                answer="9",
                subject="counting",
            ),
        )
    ],
    "asked": [
        Asked("55", "Which word is formed?", "C", right="KNR", wrong="A", options=_WORDS, category="combinatorics"),
        Asked(  # choices that are in the picture are not listed; one picture holds all four drawings
            "59",
            "A cube in two positions.\nWhich side is opposite to image 3?",
            "C",
            right="C",
            wrong="D",
            options="ABCDE",
            lists_options=False,
            category="solid geometry",
            pictures=["blue"],
        ),
        Asked(
            "61",
            "Into how many pieces will the string be cut?",
            "9",
            right="9",
            wrong="8",
            category="counting",
            pictures=["lime"],
        ),
    ],
    "needed": "options",
    "picture": "decoded_image",
}
LAYOUTS = {
    "mathvista": Layout(
        features={
            **texts("pid question image unit answer question_type answer_type query"),
            "decoded_image": PICTURE,
            "choices": TEXTS,
            "precision": NUMBER,
            "metadata": {"category": TEXT, "task": TEXT, "skills": TEXTS, "img_height": Value("int64")},
        },
        rows=[
            row(
                pid="1",
                question="What is the force?",
                image="images/1.jpg",
                decoded_image=RED,
                unit="N",
                precision=1.0,
                answer="1.2",
                question_type="free_form",
                answer_type="float",
                metadata={"category": "math", "task": "textbook question answering", "skills": ["algebraic"]},
            ),
            row(
                pid="2",
                question="Is the red bar the longest?",
                image="images/2.jpg",
                decoded_image=BLUE,
                choices=["Yes", "No"],
                answer="No",
                question_type="multi_choice",
                answer_type="text",
                metadata={"category": "math", "task": "figure question answering", "skills": []},
            ),
            row(
                pid="3",
                question="How many are left?",
                image="images/3.jpg",
                decoded_image=GREEN,
                answer="5",
                question_type="free_form",
                answer_type="integer",
            ),
        ],
        asked=[
            Asked(
                "1",
                "What is the force? (Unit: N)",
                "1.2",
                right="1.249",
                wrong="1.3",
                category="textbook question answering",
                hint=_ONE_PLACE,
                tolerance={"absolute": 0.05},
            ),
            Asked(
                "2",
                "Is the red bar the longest?",
                "B",
                right="No",
                wrong="A",
                options=["Yes", "No"],
                category="figure question answering",
                hint=_LETTER,
                pictures=["blue"],
            ),
            Asked("3", "How many are left?", "5", right="5", wrong="5.04", hint=_WHOLE, pictures=["lime"]),
        ],
        needed="precision",
        picture="decoded_image",
    ),
    "mathverse": Layout(
        **_MATHVERSE,
        rows=_VERSE_ROWS,
        asked=[
            Asked(
                "1",
                _ANGLE,
                "D",
                right="140°",
                wrong="(A)",
                options=["40°", "60°", "120°", "140°"],
                category="Text Dominant",
                hint=_VERSE_HINT,
                group="1",
            ),
            _VISION_ONLY,
        ],
    ),
    "mathverse/vision_only": Layout(
        **_MATHVERSE,
        rows=[*_VERSE_ROWS, {**_VERSE_ROWS[1], "sample_index": "10", "problem_index": "2", "answer": "7 m"}],
        asked=[_VISION_ONLY, replace(_VISION_ONLY, id="10", answer="7 m", right="7", wrong="8", group="2")],
    ),
    "mathvision": Layout(**_MATHVISION),
    "mathvision/testmini": Layout(**_MATHVISION),
}
