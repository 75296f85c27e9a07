"""Rows of MathVista, MathVerse and MathVision, in the columns and types in which they are published."""

from datasets import Value

from benchmark_rows.layout import BLUE, GREEN, NUMBER, PICTURE, RED, TEXT, TEXTS, Asked, Layout, texts

_MATHVERSE = {
    "features": {
        **texts("sample_index problem_index problem_version question"),
        "image": PICTURE,
        **texts("answer question_type"),
        "metadata": {"split": TEXT, "source": TEXT, "subject": TEXT, "subfield": TEXT},
        **texts("query_wo query_cot question_for_eval"),
    },
    "needed": "problem_version",
    "picture": "image",
}
_VERSE_ROWS = [
    {
        "sample_index": "1",
        "problem_index": "1",
        "problem_version": "Text Dominant",
        "question": "As shown in the figure, what is the size of angle CED ()\nChoices:\nA:40°\nB:60°\nC:120°\nD:140°",
        "image": RED,
        "answer": "D",
        "question_type": "multi-choice",
        "metadata": {"split": "testmini", "source": "GeoQA", "subject": "Plane Geometry", "subfield": "Angle"},
    },
    {
        "sample_index": "5",
        "problem_index": "1",
        "problem_version": "Vision Only",
        "question": "",
        "image": BLUE,
        "answer": "D",
        "question_type": "multi-choice",
        "metadata": {"split": "testmini", "source": "GeoQA", "subject": "Plane Geometry", "subfield": "Angle"},
    },
]
_VERSE_HINT = (
    "Please first conduct reasoning, and then answer the question and provide the correct option letter, e.g., A, B, "
    "C, D, at the end."
)
_VERSE_ROWS[0]["query_cot"] = f"{_VERSE_HINT}\nQuestion: {_VERSE_ROWS[0]['question']}"
_ONE_PLACE = (
    "Please answer the question requiring a floating-point number with one decimal place and provide the final value, "
    "e.g., 1.2, 1.3, 1.4, at the end."
)
_LETTER = "Please answer the question and provide the correct option letter, e.g., A, B, C, D, at the end."
_WHOLE = (
    "Please answer the question requiring an integer answer and provide the final value, e.g., 1, 2, 3, at the end."
)
_VISION_ONLY = {"prompt": "The question is in the picture.", "answer": "D", "right": "D", "wrong": "B", "id": "5"}
_VISION_FEATURES = {
    **texts("id question"),
    "options": TEXTS,
    "image": TEXT,
    "decoded_image": PICTURE,
    **texts("answer solution"),
    "level": Value("int64"),
    "subject": TEXT,
}
_VISION_ROWS = [
    {
        "id": "55",
        "question": "Which word is formed?\n<image1>",
        "options": ["KNAO", "KNGO", "KNR", "AGRO", "KAO"],
        "image": "images/55.jpg",
        "decoded_image": RED,
        "answer": "C",
        "level": 1,
        "subject": "combinatorics",
    },
    {
        "id": "59",
        "question": "<image1>\nA cube in two positions.\n<image2>\nWhich side is opposite to <image3>?\n<image4>",
        "options": ["A", "B", "C", "D", "E"],
        "image": "images/59.jpg",
        "decoded_image": BLUE,
        "answer": "C",
        "level": 1,
        "subject": "solid geometry",
    },
    {
        "id": "61",
        "question": "Into how many pieces will the string be cut?\n<image1>",
        "options": [],
        "image": "images/61.jpg",
        "decoded_image": GREEN,
        "answer": "9",
        "level": 1,
        "subject": "counting",
    },
]
_VISION_ASKED = [
    Asked(
        id="55",
        prompt="Which word is formed?\n(A) KNAO\n(B) KNGO\n(C) KNR\n(D) AGRO\n(E) KAO",
        answer="C",
        right="KNR",
        wrong="A",
        category="combinatorics",
    ),
    Asked(  # choices that are in the picture are not listed; one picture holds all four drawings
        id="59",
        prompt="A cube in two positions.\nWhich side is opposite to image 3?",
        answer="C",
        right="C",
        wrong="D",
        choices={letter: letter for letter in "ABCDE"},
        category="solid geometry",
        pictures=["blue"],
    ),
    Asked(
        id="61",
        prompt="Into how many pieces will the string be cut?",
        answer="9",
        right="9",
        wrong="8",
        category="counting",
        pictures=["lime"],
    ),
]
_VISION = {
    "features": _VISION_FEATURES,
    "rows": _VISION_ROWS,
    "asked": _VISION_ASKED,
    "needed": "options",
    "picture": "decoded_image",
}
LAYOUTS = {
    "mathvista": Layout(
        features={
            **texts("pid question image"),
            "decoded_image": PICTURE,
            "choices": TEXTS,
            "unit": TEXT,
            "precision": NUMBER,
            **texts("answer question_type answer_type"),
            "metadata": {"category": TEXT, "task": TEXT, "skills": TEXTS, "img_height": Value("int64")},
            "query": TEXT,
        },
        rows=[
            {
                "pid": "1",
                "question": "What is the force?",
                "image": "images/1.jpg",
                "decoded_image": RED,
                "choices": None,
                "unit": "N",
                "precision": 1.0,
                "answer": "1.2",
                "question_type": "free_form",
                "answer_type": "float",
                "metadata": {"category": "math", "task": "textbook question answering", "skills": ["algebraic"]},
            },
            {
                "pid": "2",
                "question": "Is the red bar the longest?",
                "image": "images/2.jpg",
                "decoded_image": BLUE,
                "choices": ["Yes", "No"],
                "unit": None,
                "precision": None,
                "answer": "No",
                "question_type": "multi_choice",
                "answer_type": "text",
                "metadata": {"category": "math", "task": "figure question answering", "skills": []},
            },
            {
                "pid": "3",
                "question": "How many are left?",
                "image": "images/3.jpg",
                "decoded_image": GREEN,
                "choices": None,
                "unit": None,
                "precision": None,
                "answer": "5",
                "question_type": "free_form",
                "answer_type": "integer",
                "metadata": None,
            },
        ],
        asked=[
            Asked(
                id="1",
                prompt=f"{_ONE_PLACE}\nWhat is the force? (Unit: N)",
                answer="1.2",
                right="1.249",
                wrong="1.3",
                category="textbook question answering",
                hint=_ONE_PLACE,
                tolerance={"absolute": 0.05},
            ),
            Asked(
                id="2",
                prompt=f"{_LETTER}\nIs the red bar the longest?\n(A) Yes\n(B) No",
                hint=_LETTER,
                answer="B",
                right="No",
                wrong="A",
                category="figure question answering",
                pictures=["blue"],
            ),
            Asked(
                id="3",
                prompt=f"{_WHOLE}\nHow many are left?",
                answer="5",
                right="5",
                wrong="5.04",
                hint=_WHOLE,
                pictures=["lime"],
            ),
        ],
        needed="precision",
        picture="decoded_image",
    ),
    "mathverse": Layout(
        **_MATHVERSE,
        rows=_VERSE_ROWS,
        asked=[
            Asked(
                id="1",
                prompt=f"{_VERSE_HINT}\nAs shown in the figure, what is the size of angle CED ()\n(A) 40°\n(B) 60°\n"
                "(C) 120°\n(D) 140°",
                answer="D",
                right="140°",
                wrong="(A)",
                category="Text Dominant",
                hint=_VERSE_HINT,
                group="1",
            ),
            Asked(**_VISION_ONLY, category="Plane Geometry", group="1", pictures=["blue"]),
        ],
    ),
    "mathverse/vision_only": Layout(
        **_MATHVERSE,
        rows=[*_VERSE_ROWS, {**_VERSE_ROWS[1], "sample_index": "10", "problem_index": "2", "answer": "7 m"}],
        asked=[
            Asked(**_VISION_ONLY, category="Plane Geometry", group="1", pictures=["blue"]),
            Asked(
                id="10",
                prompt="The question is in the picture.",
                answer="7 m",
                right="7",
                wrong="8",
                category="Plane Geometry",
                group="2",
                pictures=["blue"],
            ),
        ],
    ),
    "mathvision": Layout(**_VISION),
    "mathvision/testmini": Layout(**_VISION),
}
