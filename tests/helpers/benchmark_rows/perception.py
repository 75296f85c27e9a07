"""Rows of benchmarks of visual logic, physics, charts and perception, in the columns that their cards list.

visulogic: data.jsonl of huggingface.co/datasets/VisuLogic/VisuLogic, as VisuLogic-Eval's evaluation/eval_model.py reads
it. visualpuzzles: card of neulab/VisualPuzzles. phyx: card of Cloudriver/PhyX, configuration data_for_llms_eval.
seephys, charxiv, realworldqa, vstar, hrbench, blink: the tasks of these names in EvolvingLMMs-Lab/lmms-eval.
"""

from datasets import List, Value

from benchmark_rows.layout import BLUE, GREEN, IMAGE, RED, TEXTS, Asked, Layout, numbered, row, texts

_NUMBER = Value("int64")
_LETTERS = list("ABCD")
_PHYX = texts("index question answer image category subfield reasoning_type")  # the image in base64
_HR_BENCH = {**texts("question answer category A B C D cycle_category image"), "index": _NUMBER}
_SIGN = "What is on the sign? a bear; a deer; a fox; a hare"  # the question, in whatever order its choices are
_DIRECTLY = "Please answer directly with only the letter of the correct option and nothing else."
_WITH_A_LETTER = "Answer with the option's letter from the given choices directly."


def _hr_bench():
    return Layout(
        features=_HR_BENCH,
        rows=[
            row(
                index=0,
                question="What is on the sign?",
                answer="B",
                category="single",
                A="a fox",
                B="a hare",
                C="a deer",
                D="a bear",
                cycle_category="0",
                image=RED,
            ),
            row(
                index=1,
                question="What is on the sign?",
                answer="A",
                category="cross",
                A="a hare",
                B="a deer",
                C="a bear",
                D="a fox",
                cycle_category="1",
                image=BLUE,
            ),
        ],
        asked=[
            Asked(right="a hare", wrong="A", options=["a fox", "a hare", "a deer", "a bear"], group=_SIGN),
            Asked(right="A", wrong="a fox", options=["a hare", "a deer", "a bear", "a fox"], group=_SIGN),
        ],
        columns={"id": "index", "category": "category"},
        needed="answer",
        image="image",
    )


_X = "An x-axis that several subplots share counts; of two x-axes, take the lower one."
_Y = "A y-axis that several subplots share counts; of two y-axes, take the left one."
_TICK = "Leave out units and scales that are written apart from the tick."
_STEP = 'Without numerical ticks, or if the difference varies, answer "Not Applicable".'
_LINES = 'Leave out grid lines, tick marks and auxiliary lines. In a plot without lines, answer "Not Applicable".'
_LEGEND = 'Only labels of this plot count, wherever the legend stands. Without a legend, answer "Not Applicable".'
_NAMES = "List them from top to bottom, then from left to right, separated by commas."
_GRID, _BOTTOM = "For the subplot at row 2 and column 3, ", "For the bottom subplot, "
_TICKS = "what is the total number of explicitly labeled ticks across all axes?"
_STEPS = "what is the difference between consecutive numerical tick values on the y-axis?"
# fmt: off
_DESCRIBED = [  # answer, a wrong one, question, hint, category; four of each chart
    ("Not Applicable", "Loss", "For the current plot, what is its title?",
     'A letter alone is no title. Without a title, answer "Not Applicable".', "information extraction"),
    ("3", "2", "For the current plot, how many discrete labels are there in the legend?", _LEGEND, "counting"),
    ("Increases", "Decreases", "For the current plot, what is the general trend of data from left to right?",
     'A few words, such as "increases then stabilizes".', "pattern recognition"),
    ("1", "2", "What is the number of subplots?", "Without subplots it is 1.", "counting"),
    ("1.00", "2", f"{_GRID}what is the rightmost labeled tick on the x-axis?", f"{_X} {_TICK}",
     "information extraction"),
    ("Yes", "No", f"{_GRID}do any lines intersect?", f"Answer Yes or No. {_LINES}", "pattern recognition"),
    ("14", "15", f"{_GRID}{_TICKS}", "Axes that several subplots share count.", "compositionality"),
    ("2 by 3", "2 by 4", "What is the layout of the subplots?",
     'Answer "n by m", n rows and m columns; without subplots "1 by 1".', "pattern recognition"),
    ("time (s)", "time (h)", f"{_BOTTOM}what is the label of the x-axis?",
     f'{_X} Without a label, answer "Not Applicable".', "information extraction"),
    ("0.5", "0.05", f"{_BOTTOM}{_STEPS}", f"{_Y} {_TICK} {_STEP}", "enumeration"),
    ("4", "5", f"{_BOTTOM}how many lines are there?", _LINES, "counting"),
    ("SGD, Adam", "SGD, RMSprop", f"{_BOTTOM}what are the names of the labels in the legend?", f"{_NAMES} {_LEGEND}",
     "enumeration"),
]  # fmt: on


# fmt: off
_PHYX_OPEN = Layout(
    features=_PHYX,
    rows=[
        row(index="1", question="What is the focal length?", answer="20 cm", image=RED, category="Optics"),
        row(index="2", question="How fast is it?", answer="$3.5$", image=GREEN, category="Mechanics"),
    ],
    asked=[Asked(right="0.2 m", wrong="2 cm"), Asked(right="3.5", wrong="3.6")],
    columns={"id": "index", "category": "category"},
    needed="index",
    image="image",
)
_PHYX_CHOICES = Layout(
    features=_PHYX,
    rows=[
        row(
            index="1", question="What is the focal length?\nOptions:\nA: 10 cm\nB: 20 cm\nC: 30 cm\nD: 40 cm",
            answer="B", image=RED, category="Optics",
        ),
        row(index="2", question="Which graph is right?", answer="D", image=BLUE, category="Mechanics"),
    ],
    asked=[
        Asked(
            right="20 cm", wrong="A", question="What is the focal length?",
            options=["10 cm", "20 cm", "30 cm", "40 cm"],
        ),
        Asked(right="D", wrong="C"),
    ],
    columns={"id": "index", "category": "category"},
    needed="answer",
    image="image",
)
LAYOUTS = {
    "visulogic": Layout(
        features=None,
        rows=[
            row(
                id="00000", tag="Attribute Reasoning", question="Which one goes into the gap?\nA: A\nB: B\nC: C\nD: D",
                label="C", image_path=RED,
            ),
            row(id="00001", tag="Other", question="Which one is the odd one out?", label="A", image_path=BLUE),
        ],
        asked=[
            Asked(
                right="C", wrong="D", question="Which one goes into the gap?", options=_LETTERS, lists_options=False
            ),
            Asked(right="(A)", wrong="B", options=_LETTERS, lists_options=False),
        ],
        columns={"answer": "label", "category": "tag"},
        needed="label",
        image="image_path",
    ),
    "visualpuzzles": Layout(
        features={**texts("category question answer"), "id": _NUMBER, "options": TEXTS, "image": IMAGE},
        rows=[
            row(
                id=3, category="spatial", question="How many pieces can he eat?", options=["32", "35", "37", "40"],
                answer="C", image=RED,
            ),
            row(
                id=4, category="deductive", question="Which figure in <image2> can he not make of <image1>?",
                options=None, answer="B", image=BLUE,
            ),
        ],
        asked=[
            Asked(right="37", wrong="35", options=["32", "35", "37", "40"]),
            Asked(
                right="B", wrong="A", question="Which figure in image 2 can he not make of image 1?",
                options=_LETTERS, lists_options=False,
            ),
        ],
        needed="options",
        image="image",
        columns={"category": "category"},
    ),
    "phyx": _PHYX_OPEN,
    "phyx/full": _PHYX_OPEN,
    "phyx/choices": _PHYX_CHOICES,
    "phyx/full_choices": _PHYX_CHOICES,
    "seephys": Layout(
        features={
            **texts("question answer subject language img_category vision_relevance caption sig_figs level"),
            "index": _NUMBER,
            "images": List(IMAGE),
        },
        rows=[
            row(index=0, question="What is the force?", answer="3.50", subject="CM", sig_figs="3", images=[RED]),
            row(index=1, question="Which of both is warmer?", answer="T_1", subject="TSM", images=[RED, BLUE]),
            row(index=2, question="nan", answer="5", subject="CM", sig_figs="nan", images=[BLUE]),
            row(index=3, answer="6", subject="CM", images=[BLUE]),
        ],
        asked=[
            Asked(right="3.50", wrong="3.4", hint="Give the final answer with 3 significant figures."),
            Asked(right="T_1", wrong="T_2"),
            Asked(right="5", wrong="6", question="The question is in the picture."),
            Asked(right="6", wrong="5", question="The question is in the picture."),
        ],
        columns={"id": "index"},
        needed="images",
        image="images",
    ),
    "charxiv": Layout(
        features={
            **texts("category figure_path reasoning_q reasoning_a original_id"),
            **dict.fromkeys(["reasoning_q_source", "reasoning_a_type"], _NUMBER),
            "image": IMAGE,
        },
        rows=[
            row(
                figure_path="images/0.jpg", category="cs", reasoning_q="Which curve ends highest?", reasoning_a="SGD",
                reasoning_a_type=1, reasoning_q_source=3, image=RED,
            ),
            row(
                figure_path="images/1.jpg", category="math", reasoning_q="Is it rising?", reasoning_a="Yes",
                reasoning_a_type=2, reasoning_q_source=1, image=BLUE,
            ),
            row(
                figure_path="images/2.jpg", category="math", reasoning_q="What is the highest tick?", reasoning_a="0.8",
                reasoning_a_type=3, reasoning_q_source=1, image=BLUE,
            ),
            row(
                figure_path="images/3.jpg", category="math", reasoning_q="How far apart are they?", reasoning_a="2.50",
                reasoning_a_type=4, reasoning_q_source=2, image=GREEN,
            ),
            row(
                figure_path="images/4.jpg", category="math", reasoning_q="How many curves?", reasoning_a="4",
                reasoning_a_type=4, reasoning_q_source=3, image=GREEN,
            ),
        ],
        asked=[
            Asked(right="SGD", wrong="Adam", hint="The answer is text that stands in the chart."),
            Asked(right="yes", wrong="No"),
            Asked(right="0.8", wrong="1.0", hint="The answer is a number that stands in the chart."),
            Asked(right="2.5", wrong="2.504", hint="The answer is a number, with 2 digits after the point."),
            Asked(right="4", wrong="5", hint="The answer is a number, a whole one."),
        ],
        columns={"id": "figure_path", "question": "reasoning_q", "answer": "reasoning_a", "category": "category"},
        needed="reasoning_a_type",
        image="image",
    ),
    "charxiv/descriptive": Layout(
        features={
            **texts("category figure_path subplot_loc"),
            **texts(" ".join(f"descriptive_a{part}" for part in range(1, 5))),
            **dict.fromkeys([f"descriptive_q{part}" for part in range(1, 5)], _NUMBER),
            **dict.fromkeys(["num_subplots", "subplot_row", "subplot_col"], _NUMBER),
            "image": IMAGE,
        },
        rows=[
            row(
                figure_path="images/0.jpg", category="cs", num_subplots=1, subplot_row=0, subplot_col=0, image=RED,
                descriptive_q1=1, descriptive_a1="Not Applicable", descriptive_q2=12, descriptive_a2="3",
                descriptive_q3=16, descriptive_a3="Increases", descriptive_q4=19, descriptive_a4="1",
            ),
            row(
                figure_path="images/1.jpg", category="math", num_subplots=6, subplot_row=2, subplot_col=3, image=BLUE,
                descriptive_q1=5, descriptive_a1="1.00", descriptive_q2=11, descriptive_a2="Yes",
                descriptive_q3=17, descriptive_a3="14", descriptive_q4=18, descriptive_a4="2 by 3",
            ),
            row(
                figure_path="images/2.jpg", category="math", num_subplots=5, subplot_loc="the bottom subplot",
                image=BLUE, descriptive_q1=2, descriptive_a1="time (s)", descriptive_q2=9, descriptive_a2="0.5",
                descriptive_q3=10, descriptive_a3="4", descriptive_q4=13, descriptive_a4="SGD, Adam",
            ),
        ],
        asked=[
            Asked(
                right=right, wrong=wrong, id=f"images/{place // 4}.jpg/{place % 4 + 1}", question=question,
                answer=right, category=category, hint=hint, group=f"images/{place // 4}.jpg",
            )
            for place, (right, wrong, question, hint, category) in enumerate(_DESCRIBED)
        ],
        needed="descriptive_a3",
        image="image",
    ),
    "realworldqa": Layout(
        features={**texts("question answer image_path"), "image": IMAGE},
        rows=[
            row(question=f"Where can we go?\nA. Left\nB. Right\nC. Straight\n{_DIRECTLY}", answer="B", image=RED),
            row(
                question="How many signs are there?\nPlease answer directly with a single word or number.", answer="3",
                image=BLUE,
            ),
        ],
        asked=[
            Asked(
                right="Right", wrong="A", id="realworldqa-0", question="Where can we go?",
                options=["Left", "Right", "Straight"],
            ),
            Asked(right="3", wrong="4", id="realworldqa-1", question="How many signs are there?"),
        ],
        needed="answer",
        image="image",
    ),
    "vstar": Layout(
        features={**texts("text category label question_id"), "image": IMAGE},
        rows=[
            row(
                question_id="0", category="direct_attributes", label="A", image=RED,
                text=f"What is the glove made of?\n(A) rubber\n(B) cotton\n(C) kevlar\n(D) leather\n{_WITH_A_LETTER}",
            ),
            row(
                question_id="1", category="relative_position", label="B", image=BLUE,
                text=f"Is the dog left of the car?\n(A) no\n(B) yes\n{_WITH_A_LETTER}",
            ),
        ],
        asked=[
            Asked(
                right="rubber", wrong="B", question="What is the glove made of?",
                options=["rubber", "cotton", "kevlar", "leather"],
            ),
            Asked(right="yes", wrong="A", question="Is the dog left of the car?", options=["no", "yes"]),
        ],
        columns={"id": "question_id", "answer": "label", "category": "category"},
        needed="label",
        image="image",
    ),
    "hrbench/4k": _hr_bench(),
    "hrbench/8k": _hr_bench(),
    "blink": Layout(
        features={
            **texts("idx sub_task question answer prompt explanation"), "choices": TEXTS, **numbered(4),
        },
        rows=[
            row(
                idx="val_Relative_Depth_1", sub_task="Relative_Depth", question="Which point is closer?",
                prompt="Two points are marked.\nSelect from the following choices.\n(A) A is closer\n(B) B is closer",
                choices=["A is closer", "B is closer"], answer="(B)", image_1=RED,
            ),
            row(
                idx="val_Jigsaw_2", sub_task="Jigsaw", question="Which image is missing?",
                prompt="Is (A) the second image or (B) the third image missing?",
                choices=["the second image", "the third image"], answer="(A)", image_1=RED, image_2=BLUE, image_3=GREEN,
            ),
        ],
        asked=[
            Asked(
                right="B is closer", wrong="A", answer="B", options=["A is closer", "B is closer"],
                question="Two points are marked.\nSelect from the following choices.",
            ),
            Asked(
                right="the second image", wrong="B", answer="A", options=["the second image", "the third image"],
                question="Is (A) the second image or (B) the third image missing?", lists_options=False,
            ),
        ],
        columns={"id": "idx", "category": "sub_task"},
        needed="prompt",
        image="image_1",
    ),
}
