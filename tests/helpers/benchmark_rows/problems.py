"""Rows of We-Math, DynaMath, OlympiadBench, MV-MATH and MMK12, in the columns and types in which they are published."""

from datasets import Value

from benchmark_rows.layout import BLUE, GREEN, IMAGE, RED, TEXTS, Asked, Layout, numbered, row, texts

_SEVERAL = "The question has several answers; separate them with commas. Unit: s. Leave the unit out of the answer."
_SLOPE = {"id": "2", "question": "What is the slope?", "answer_type": "float", "subject": "algebra"}
_SLOPE_ASKED = {"hint": "Give the answer to 3 decimal places.", "tolerance": {"absolute": 0.001}}

# fmt: off
LAYOUTS = {
    "we_math": Layout(
        features=None,
        rows=[
            {
                **columns,
                "ID": "2steps_1",
                "split": "testmini",
                "knowledge concept": "…",
                "question number": number,
                "knowledge concept description": "…",
            }
            for number, columns in {
                1: row(
                    question="OA = ( ) m, AB = ( ) m",
                    option="A. 300, 400;B. 400, 300;C. 3000, 4000;D. 4000, 3000.; E. No correct answer", answer="C",
                    image_path=RED, key="2steps_1",
                ),
                3: row(
                    question="Mike moves right to reach which point?",
                    option="A. B;    B. C; C. D; D. E; E. No correct answer", answer="D", image_path=BLUE,
                    key="2steps_multi",
                ),
            }.items()
        ],
        asked=[
            Asked(
                right="C", wrong="E", id="2steps_1/1",
                options=["300, 400", "400, 300", "3000, 4000", "4000, 3000.", "No correct answer"],
                category="one step",
            ),
            Asked(
                right="(D)", wrong="(C)", id="2steps_1/multi", options=[*"BCDE", "No correct answer"],
                category="two steps",
            ),
        ],
        columns={"group": "ID"},
        needed="option",
        image="image_path",
    ),
    "dynamath": Layout(
        features={
            **texts("id question image ground_truth answer_type subject knowledge_level"),
            "decoded_image": IMAGE,
        },
        rows=[
            row(
                id="1",
                question="Which function is monotonic in range [0, pi]? choice: (A) the red one (B) the blue one "
                "(C) both (D) none of them",
                image="image1.png",
                decoded_image=RED,
                ground_truth="B",
                answer_type="multiple choice",
                subject="analytic geometry",
            ),
            {**_SLOPE, "image": "image2.png", "decoded_image": BLUE, "ground_truth": "0.333"},
            {**_SLOPE, "image": "image2.png", "decoded_image": GREEN, "ground_truth": "0.5"},  # its second variant
        ],
        asked=[
            Asked(
                right="the blue one", wrong="both", question="Which function is monotonic in range [0, pi]?",
                options=["the red one", "the blue one", "both", "none of them"],
            ),
            Asked(right="1/3", wrong="0.33", **_SLOPE_ASKED),
            Asked(right="1/2", wrong="0.333", id="2#2", **_SLOPE_ASKED),
        ],
        columns={"answer": "ground_truth", "group": "id"},
        needed="ground_truth",
        image="decoded_image",
    ),
    "olympiadbench": Layout(
        features={
            **texts("question context modality difficulty unit answer_type error question_type subfield subject"),
            **texts("language"),
            **numbered(5),
            "id": Value("int64"),
            "solution": TEXTS,
            "final_answer": TEXTS,
            "is_multiple_answer": Value("bool"),
        },
        rows=[
            {"answer_type": "Numerical", **columns}
            for columns in (
                row(
                    id=2231, question="Determine the largest constant $C>0$.\n<image_1>",
                    final_answer=["$\\frac{1}{2}$"], image_1=RED, is_multiple_answer=False, subfield="Geometry",
                    subject="Math",
                ),
                row(
                    id=960, question="How long do both journeys of <image_2> take?", final_answer=["1.2, 3.4"],
                    context="A car drives as in <image_1>.", image_1=RED, image_2=BLUE, is_multiple_answer=True,
                    unit="s", error="1e-1,5e-1", subfield="Mechanics", subject="Physics",
                ),
                row(
                    id=961, question="How far is it?", final_answer=["$2.5 \\times 10^{3}$"], image_1=GREEN,
                    is_multiple_answer=False, error="1e1", subfield="Mechanics", subject="Physics",
                ),
            )
        ],
        asked=[
            Asked(right="0.5", wrong="0.51", question="Determine the largest constant $C>0$.", answer="\\frac{1}{2}"),
            Asked(
                right="1.25, 3.8", wrong="1.25, 4.0",
                question="A car drives as in image 1.\nHow long do both journeys of image 2 take?", answer="1.2, 3.4",
                hint=_SEVERAL, tolerance={"absolute": [0.1, 0.5]},
            ),
            Asked(right="2509", wrong="2511", answer="2.5 \\times 10^{3}", tolerance={"absolute": 10.0}),
        ],
        needed="error",
        image="image_1",
    ),
    "mv_math": Layout(
        features=None,
        rows=[
            {**columns, "is_multi_img": True, "grade": "Junior", "analysis": "…"}
            for columns in (
                row(
                    problem_id=1,
                    question="Which can be obtained by rotating a plane figure?\nA.\n\n<image_1>\nB.\n\n<image_2>",
                    input_image=[RED, BLUE], answer="B", answer_type="choice", difficulty="Low",
                    subject="Solid Geometry", image_relavance="0",
                ),
                row(
                    problem_id=1111,
                    question="The fold could be at $\\qquad$ .\n\n<image_1>\n\nFold\n\n<image_2>\n\nCut",
                    input_image=[BLUE, GREEN], answer="$1,2,3$", answer_type="single-step", difficulty="Medium",
                    subject="Algebra", image_relavance="1",
                ),
            )
        ],
        asked=[
            Asked(
                right="B", wrong="A", question="Which can be obtained by rotating a plane figure?",
                options=["image 1", "image 2"],
            ),
            Asked(
                right="3, 2, 1", wrong="1, 2",
                question="The fold could be at $\\qquad$ .\n\nimage 1\n\nFold\n\nimage 2\n\nCut",
            ),
        ],
        columns={"id": "problem_id"},
        needed="input_image",
        image="input_image",
    ),
    "mmk12": Layout(
        features={**texts("id question answer subject"), "image": IMAGE},
        rows=[
            row(
                id="a1", question="<image>Which is right?\nA. The first\nB. The second\nC. The third\nD. The fourth",
                answer="D", subject="biology", image=RED,
            ),
            row(id="a2", question="How many are there?", answer="12", subject="math", image=BLUE),
        ],
        asked=[
            Asked(
                right="D. The fourth", wrong="A", question="Which is right?",
                options=["The first", "The second", "The third", "The fourth"],
            ),
            Asked(right="12", wrong="1"),
        ],
        needed="answer",
        image="image",
    ),
}
