"""Rows of benchmarks of many subjects and of logic, in the columns and types in which they are published."""

from datasets import Value

from benchmark_rows.layout import BLUE, GREEN, IMAGE, RED, TEXTS, Asked, Layout, numbered, row, texts

_MMMU_FEATURES = {**texts("id question options explanation img_type answer topic_difficulty"), **numbered(7)}
_KINGS = [f"king {letter}" for letter in "ABCDEFGHIJ"]
_INTERVALS = [f"{number}th" for number in range(10)]
_SCALES = ["major", "minor", *(f"none of {number}" for number in range(8))]
_LINES = ["Replace line 6", "Replace line 7"]

# fmt: off
LAYOUTS = {
    "mmmu": Layout(
        features={**_MMMU_FEATURES, **texts("question_type subfield")},
        rows=[
            row(
                id="validation_Art_Theory_7", question="Which of <image 1> and <image 2> is older?",
                options="['The first', 'The \"second\"', '<image 3>']", image_1=RED, image_2=BLUE, image_3=GREEN,
                answer="B", question_type="multiple-choice",
            ),
            row(
                id="validation_Math_3", question="<image 1> What is the ratio?", options="[]", image_1=BLUE,
                answer="['24/7', '3.429']", question_type="open",
            ),
        ],
        asked=[
            Asked(
                right='The "second"', wrong="C", question="Which of image 1 and image 2 is older?", answer=["B"],
                options=["The first", 'The "second"', "image 3"], category="Art_Theory",
            ),
            Asked(
                right="3.429", wrong="7/24", question="What is the ratio?", answer=["24/7", "3.429"], category="Math"
            ),
        ],
        needed="question_type",
        image="image_2",
    ),
    "mmmu_pro/vision": Layout(
        features={**texts("id options answer subject"), "image": IMAGE},
        rows=[
            row(id="test_History_1", image=RED, options=str(_KINGS), answer="J", subject="History"),
            row(id="test_History_2", image=BLUE, options=str(_KINGS), answer="A", subject="History"),
        ],
        asked=[
            Asked(
                right=f"king {answer}", wrong="B", question="The question and its choices are in the picture.",
                options=_KINGS, lists_options=False,
            )
            for answer in "JA"
        ],
        needed="options",
        image="image",
    ),
    "mmmu_pro/standard": Layout(
        features={**_MMMU_FEATURES, **texts("subject")},
        rows=[
            row(
                id="test_Music_1", question="What is the interval? <image 1>", options=str(_INTERVALS), image_1=RED,
                answer="J", subject="Music",
            ),
            row(
                id="test_Music_2", question="<image 1> or <image 2>?", options=str(_SCALES), image_1=RED, image_2=BLUE,
                answer="A", subject="Music",
            ),
        ],
        asked=[
            Asked(right="9th", wrong="8th", question="What is the interval?", options=_INTERVALS),
            Asked(right="A", wrong="minor", question="image 1 or image 2?", options=_SCALES),
        ],
        needed="options",
        image="image_1",
    ),
    "mmstar": Layout(
        features={
            **texts("question answer category l2_category"),
            "index": Value("int64"),
            "image": IMAGE,
            "meta_info": texts("source split image_path"),
        },
        rows=[
            row(
                index=0,
                question="Which option describes the relationship in the image?\n"
                "Options: A: The man, old, sits., B: A dog, C: Two cats, D: Nothing",
                image=RED,
                answer="A",
                category="coarse perception",
            ),
            row(  # no colon after B: the choices cannot be told, and stay where they are
                index=7, question="How many?\nOptions: A: 1, B 2, C: 3, D: 4", image=BLUE, answer="C", category="math"
            ),
        ],
        asked=[
            Asked(
                right="A", wrong="C", question="Which option describes the relationship in the image?",
                options=["The man, old, sits.", "A dog", "Two cats", "Nothing"],
            ),
            Asked(right="(C)", wrong="B"),
        ],
        columns={"id": "index", "category": "category"},
        needed="index",
        image="image",
    ),
    "m3cot": Layout(
        features={
            **texts("id category image_id question context answer rationale split domain topic"),
            "choices": TEXTS,
            "image": IMAGE,
        },
        rows=[
            row(
                id="physical-commonsense-1", question="What is next?", choices=["rain", "snow"],
                context="The sky is grey.", answer="A", image=RED, domain="commonsense",
            ),
            row(
                id="algebra-2", question="How much?", choices=["1", "2", "3"], context="", answer="C",
                domain="mathematics",
            ),
        ],
        asked=[
            Asked(right="rain", wrong="B"),
            Asked(right="3", wrong="1"),
        ],
        columns={"options": "choices", "hint": "context", "category": "domain"},
        needed="choices",
        image="image",
    ),
    "logicvista": Layout(
        features=None,
        keyed="key",
        rows=[
            {**columns, "reasoning": "…", "imagesource": "…", "sourcelink": "…"}
            for columns in (
                row(
                    key="v1_1", imagename=RED,
                    question="Which choices in the image (A-D) belong to the green category?", answer="A, C",
                    skill=["inductive"], capability=["diagram"],
                ),
                row(
                    key="v1_258", imagename=BLUE,
                    question="What is the increase? Select from A, B, C, and D. (A) 33% (B) 17% (C) 25% (D) 50%",
                    answer="D", skill=["numerical"], capability=["diagram", "ocr"],
                ),
                row(key="v1_376", imagename=GREEN, question="", answer="D", skill=["spatial"], capability=["diagram"]),
                row(key="v1_382", imagename=RED, question="", answer="", skill=["spatial"], capability=["diagram"]),
            )
        ],
        asked=[
            Asked(right="C and A", wrong="A", id="red", category="inductive"),
            Asked(
                right="50%", wrong="A", question="What is the increase? Select from A, B, C, and D.", id="blue",
                options=["33%", "17%", "25%", "50%"], category="numerical",
            ),
            Asked(right="D", wrong="A", question="The question is in the picture.", id="lime", category="spatial"),
            None,
        ],
        needed="imagename",
        named="'image' or 'imagename'",
        image="imagename",
    ),
    "emma": Layout(
        features={
            **texts("pid question answer solution subject task category source type context"),
            **numbered(5),
            "options": TEXTS,
        },
        rows=[
            row(
                pid="coding_524", question="<image_1>\n<image_2>\nReproduce the first one.", options=_LINES,
                answer="B", image_1=RED, image_2=BLUE, subject="Coding", type="Multiple Choice", context="None",
            ),
            row(
                pid="chem_1", question="How many bonds are there?", answer="4", subject="Chemistry", type="Open-ended",
                context="A bond is a line.",
            ),
        ],
        asked=[
            Asked(
                right="B", wrong="Replace line 6", question="image 1\nimage 2\nReproduce the first one.", options=_LINES
            ),
            Asked(right="4", wrong="3", hint="A bond is a line."),
        ],
        columns={"id": "pid"},
        needed="type",
        image="image_2",
    ),
}
