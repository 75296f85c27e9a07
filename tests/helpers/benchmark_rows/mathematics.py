"""Rows of MathVista, MathVerse and MathVision, in the columns and types in which they are published."""

from dataclasses import replace

from datasets import Value

from benchmark_rows.layout import BLUE, GREEN, IMAGE, NUMBER, RED, TEXT, TEXTS, Asked, Layout, row, texts

_MATHVERSE = {
    "features": {
        **texts("sample_index problem_index problem_version question answer question_type"),
        **texts("query_wo query_cot question_for_eval"),
        "image": IMAGE,
        "metadata": texts("split source subject subfield"),
    },
    "columns": {"id": "sample_index", "group": "problem_index", "category": "problem_version"},
    "needed": "problem_version",
    "image": "image",
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
    {
        **_VERSE_PROBLEM,
        "sample_index": "5",
        "problem_version": "Vision Only",
        "question": "",
        "question_for_eval": _ANGLE_CHOICES,
        "image": BLUE,
    },
]
_VISION_ONLY = Asked(  # the choices stand in the image; the grader knows them
    right="140°", wrong="(D) 120°", question="The question is in the picture.", category="Plane Geometry",
    options=["40°", "60°", "120°", "140°"], lists_options=False,
)  # fmt: skip
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
        "decoded_image": IMAGE,
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
        Asked(right="KNR", wrong="A", question="Which word is formed?"),
        Asked(
            right="C",
            wrong="D",
            question="A cube in two positions.\nWhich side is opposite to image 3?",
            lists_options=False,
        ),
        Asked(right="9", wrong="8", question="Into how many pieces will the string be cut?"),
    ],
    "columns": {"options": "options"},
    "needed": "options",
    "image": "decoded_image",
}
# fmt: off
LAYOUTS = {
    "mathvista": Layout(
        features={
            **texts("pid question image unit answer question_type answer_type query"),
            "decoded_image": IMAGE,
            "choices": TEXTS,
            "precision": NUMBER,
            "metadata": {"category": TEXT, "task": TEXT, "skills": TEXTS, "img_height": Value("int64")},
        },
        rows=[
            row(
                pid="1", question="What is the force?", image="images/1.jpg", decoded_image=RED, unit="N",
                precision=1.0, answer="1.2", question_type="free_form", answer_type="float",
                metadata={"category": "math", "task": "textbook question answering", "skills": ["algebraic"]},
            ),
            row(
                pid="2", question="Is the red bar the longest?", image="images/2.jpg", decoded_image=BLUE,
                choices=["Yes", "No"], answer="No", question_type="multi_choice", answer_type="text",
                metadata={"category": "math", "task": "figure question answering", "skills": []},
            ),
            row(
                pid="3", question="How many are left?", image="images/3.jpg", decoded_image=GREEN, answer="5",
                question_type="free_form", answer_type="integer",
            ),
        ],
        asked=[
            Asked(
                right="1.249", wrong="1.3", question="What is the force? (Unit: N)",
                category="textbook question answering", hint=_ONE_PLACE, tolerance={"absolute": 0.05},
            ),
            Asked(right="No", wrong="A", answer="B", category="figure question answering", hint=_LETTER),
            Asked(right="5", wrong="5.04", hint=_WHOLE),
        ],
        columns={"id": "pid", "options": "choices"},
        needed="precision",
        image="decoded_image",
    ),
    "mathverse": Layout(
        **_MATHVERSE,
        rows=_VERSE_ROWS,
        asked=[
            Asked(right="140°", wrong="(A)", question=_ANGLE, options=["40°", "60°", "120°", "140°"], hint=_VERSE_HINT),
            _VISION_ONLY,
        ],
    ),
    "mathverse/vision_only": Layout(
        **_MATHVERSE,
        rows=[*_VERSE_ROWS, {**_VERSE_ROWS[1], "sample_index": "10", "problem_index": "2", "answer": "7 m"}],
        asked=[None, _VISION_ONLY, replace(_VISION_ONLY, right="7", wrong="8", options=())],
    ),
    "mathvision": Layout(**_MATHVISION),
    "mathvision/testmini": Layout(**_MATHVISION),
}
