"""Rows of benchmarks of many subjects and of logic, in the columns and types in which they are published."""

from datasets import Value

from benchmark_rows.layout import BLUE, GREEN, PICTURE, RED, TEXT, TEXTS, Asked, Layout, numbered, texts

_MMMU_FEATURES = {
    **texts("id question options explanation"),
    **numbered(7),
    **texts("img_type answer topic_difficulty"),
}
_LETTERS_10 = "ABCDEFGHIJ"

LAYOUTS = {
    "mmmu": Layout(
        features={**_MMMU_FEATURES, "question_type": TEXT, "subfield": TEXT},
        rows=[
            {
                "id": "validation_Art_Theory_7",
                "question": "Which of <image 1> and <image 2> is older?",
                "options": "['The first', 'The \"second\"', '<image 3>']",
                "image_1": RED,
                "image_2": BLUE,
                "image_3": GREEN,
                "answer": "B",
                "question_type": "multiple-choice",
            },
            {
                "id": "validation_Math_3",
                "question": "<image 1> What is the ratio?",
                "options": "[]",
                "image_1": BLUE,
                "answer": "['24/7', '3.429']",
                "question_type": "open",
            },
        ],
        asked=[
            Asked(
                id="validation_Art_Theory_7",
                prompt='Which of image 1 and image 2 is older?\n(A) The first\n(B) The "second"\n(C) image 3',
                answer=["B"],
                right='The "second"',
                wrong="C",
                category="Art_Theory",
                pictures=["red", "blue", "lime"],
            ),
            Asked(
                id="validation_Math_3",
                prompt="What is the ratio?",
                answer=["24/7", "3.429"],
                right="3.429",
                wrong="7/24",
                category="Math",
                pictures=["blue"],
            ),
        ],
        needed="question_type",
        picture="image_2",
    ),
    "mmmu_pro/vision": Layout(
        features={"id": TEXT, "image": PICTURE, "options": TEXT, "answer": TEXT, "subject": TEXT},
        rows=[
            {
                "id": f"test_History_{number}",
                "image": colour,
                "options": str([f"king {letter}" for letter in _LETTERS_10]),
                "answer": answer,
                "subject": "History",
            }
            for number, colour, answer in ((1, RED, "J"), (2, BLUE, "A"))
        ],
        asked=[
            Asked(
                id=f"test_History_{number}",
                prompt="The question and its choices are in the picture.",
                answer=answer,
                right=f"king {answer}",
                wrong="B",
                choices={letter: f"king {letter}" for letter in _LETTERS_10},
                category="History",
                pictures=[colour],
            )
            for number, colour, answer in ((1, "red", "J"), (2, "blue", "A"))
        ],
        needed="options",
        picture="image",
    ),
    "mmmu_pro/standard": Layout(
        features={**_MMMU_FEATURES, "subject": TEXT},
        rows=[
            {
                "id": "test_Music_1",
                "question": "What is the interval? <image 1>",
                "options": str([f"{number}th" for number in range(10)]),
                "image_1": RED,
                "answer": "J",
                "subject": "Music",
            },
            {
                "id": "test_Music_2",
                "question": "<image 1> or <image 2>?",
                "options": str(["major", "minor", *(f"none of {number}" for number in range(8))]),
                "image_1": RED,
                "image_2": BLUE,
                "answer": "A",
                "subject": "Music",
            },
        ],
        asked=[
            Asked(
                id="test_Music_1",
                prompt="What is the interval?\n" + "\n".join(f"({x}) {n}th" for n, x in enumerate(_LETTERS_10)),
                answer="J",
                right="9th",
                wrong="8th",
                category="Music",
            ),
            Asked(
                id="test_Music_2",
                prompt="image 1 or image 2?\n(A) major\n(B) minor\n"
                + "\n".join(f"({x}) none of {n}" for n, x in enumerate(_LETTERS_10[2:])),
                answer="A",
                right="A",
                wrong="minor",
                category="Music",
                pictures=["red", "blue"],
            ),
        ],
        needed="options",
        picture="image_1",
    ),
    "mmstar": Layout(
        features={
            "index": Value("int64"),
            "question": TEXT,
            "image": PICTURE,
            **texts("answer category l2_category"),
            "meta_info": {"source": TEXT, "split": TEXT, "image_path": TEXT},
        },
        rows=[
            {
                "index": 0,
                "question": "Which option describes the relationship in the image?\n"
                "Options: A: The man, old, sits., B: A dog, C: Two cats, D: Nothing",
                "image": RED,
                "answer": "A",
                "category": "coarse perception",
            },
            {  # no colon after B: the choices cannot be told, and stay where they are
                "index": 7,
                "question": "How many?\nOptions: A: 1, B 2, C: 3, D: 4",
                "image": BLUE,
                "answer": "C",
                "category": "math",
            },
        ],
        asked=[
            Asked(
                id="0",
                prompt="Which option describes the relationship in the image?\n(A) The man, old, sits.\n(B) A dog\n"
                "(C) Two cats\n(D) Nothing",
                answer="A",
                right="A",
                wrong="C",
                category="coarse perception",
            ),
            Asked(
                id="7",
                prompt="How many?\nOptions: A: 1, B 2, C: 3, D: 4",
                answer="C",
                right="(C)",
                wrong="B",
                category="math",
                pictures=["blue"],
            ),
        ],
        needed="index",
        picture="image",
    ),
    "m3cot": Layout(
        features={
            **texts("id category image_id question"),
            "choices": TEXTS,
            **texts("context answer rationale split"),
            "image": PICTURE,
            **texts("domain topic"),
        },
        rows=[
            {
                "id": "physical-commonsense-1",
                "question": "What is next?",
                "choices": ["rain", "snow"],
                "context": "The sky is grey.",
                "answer": "A",
                "image": RED,
                "domain": "commonsense",
            },
            {
                "id": "algebra-2",
                "question": "How much?",
                "choices": ["1", "2", "3"],
                "context": "",
                "answer": "C",
                "image": None,
                "domain": "mathematics",
            },
        ],
        asked=[
            Asked(
                id="physical-commonsense-1",
                prompt="The sky is grey.\nWhat is next?\n(A) rain\n(B) snow",
                answer="A",
                right="rain",
                wrong="B",
                category="commonsense",
                hint="The sky is grey.",
            ),
            Asked(
                id="algebra-2",
                prompt="How much?\n(A) 1\n(B) 2\n(C) 3",
                answer="C",
                right="3",
                wrong="1",
                category="mathematics",
                pictures=[],
            ),
        ],
        needed="choices",
        picture="image",
    ),
    "logicvista": Layout(
        features=None,
        keyed="key",
        rows=[
            {
                "key": "v1_1",
                "imagename": RED,
                "question": "Which choices in the image (A-D) belong to the green category?",
                "answer": "A, C",
                "reasoning": "…",
                "skill": ["inductive"],
                "capability": ["diagram"],
                "imagesource": "…",
                "sourcelink": "…",
            },
            {
                "key": "v1_258",
                "imagename": BLUE,
                "question": "What is the increase? Select from A, B, C, and D. (A) 33% (B) 17% (C) 25% (D) 50%",
                "answer": "D",
                "reasoning": "…",
                "skill": ["numerical"],
                "capability": ["diagram", "ocr"],
                "imagesource": "…",
                "sourcelink": "…",
            },
        ],
        asked=[
            Asked(
                id="red",
                prompt="Which choices in the image (A-D) belong to the green category?",
                answer="A, C",
                right="C and A",
                wrong="A",
                category="inductive",
            ),
            Asked(
                id="blue",
                prompt="What is the increase? Select from A, B, C, and D.\n(A) 33%\n(B) 17%\n(C) 25%\n(D) 50%",
                answer="D",
                right="50%",
                wrong="A",
                category="numerical",
                pictures=["blue"],
            ),
        ],
        needed="imagename",
        named="'image' or 'imagename'",
        picture="imagename",
    ),
    "emma": Layout(
        features={
            **texts("pid question"),
            "options": TEXTS,
            "answer": TEXT,
            **numbered(5),
            **texts("solution subject task category source type context"),
        },
        rows=[
            {
                "pid": "coding_524",
                "question": "<image_1>\n<image_2>\nReproduce the first one.",
                "options": ["Replace line 6", "Replace line 7"],
                "answer": "B",
                "image_1": RED,
                "image_2": BLUE,
                "subject": "Coding",
                "type": "Multiple Choice",
                "context": "None",
            },
            {
                "pid": "chem_1",
                "question": "How many bonds are there?",
                "options": None,
                "answer": "4",
                "subject": "Chemistry",
                "type": "Open-ended",
                "context": "A bond is a line.",
            },
        ],
        asked=[
            Asked(
                id="coding_524",
                prompt="image 1\nimage 2\nReproduce the first one.\n(A) Replace line 6\n(B) Replace line 7",
                answer="B",
                right="B",
                wrong="Replace line 6",
                category="Coding",
                pictures=["red", "blue"],
            ),
            Asked(
                id="chem_1",
                prompt="A bond is a line.\nHow many bonds are there?",
                answer="4",
                right="4",
                wrong="3",
                category="Chemistry",
                hint="A bond is a line.",
                pictures=[],
            ),
        ],
        needed="type",
        picture="image_2",
    ),
}
