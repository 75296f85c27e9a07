"""Rows in the layouts of public data sets, made by hand, each with where it is described, and what they become."""

import base64
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset, Features, Image, List, Value
from support import png, write_lines

RED, BLUE = (255, 0, 0), (0, 0, 255)
TEXT = Value("string")
MESSAGES = List({"role": TEXT, "content": TEXT})


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def human(text):
    return {"from": "human", "value": text}


def gpt(text):
    return {"from": "gpt", "value": text}


class Layout(NamedTuple):
    source: str
    rows: Any  # called with the folder of red.png and blue.png
    becomes: list[dict[str, Any]]
    left_out: list[str]
    kind: str = "questions"
    features: Features | None = None  # then it is parquet


LLAVA_COT = (
    "<SUMMARY> I will count. </SUMMARY>\n\n<CAPTION> Three dots. </CAPTION>\n\n"
    "<REASONING> One, two, three. </REASONING>\n\n<CONCLUSION> 3 </CONCLUSION>"
)
VERL = Features(
    {
        "data_source": TEXT,
        "prompt": MESSAGES,
        "images": List(Image()),
        "ability": TEXT,
        "reward_model": {"ground_truth": TEXT, "style": TEXT},
        "extra_info": {"answer": TEXT, "index": Value("int64"), "question": TEXT},
    }
)
RED_FILE = {"bytes": png("red", (3, 2)), "path": None}


def verl_row(ground_truth):
    return {
        "data_source": "vstar",
        "prompt": [system("You may zoom in."), user("<image>\nWhich colour?")],
        "images": [RED_FILE],
        "ability": "vl_agent",
        "reward_model": {"ground_truth": ground_truth, "style": "model"},
        "extra_info": {"answer": ground_truth, "index": 7, "question": "Which colour?"},
    }


VERL_ROW = {
    "prompt": [system("You may zoom in."), user("Which colour?")],
    "images": [RED],
    "answer": "red",
}
PREFERENCE = {
    "id": "rows-0",
    "prompt": [user("Which?")],
    "images": [RED],
    "chosen": [{"role": "assistant", "content": "Red."}],
    "rejected": [{"role": "assistant", "content": "Blue."}],
}
VERL_LEFT_OUT = ["data_source", "ability", "reward_model.style", "extra_info"]

LAYOUTS = {
    "MM-Eureka": Layout(
        "https://github.com/ModalMinds/MM-EUREKA, README, 'Custom dataset'; of it FanqingM/MM-Eureka-Dataset",
        lambda folder: [
            {
                "id": "0",
                "conversations": [system("Think."), user("Which is red?")],
                "answer": "the first",
                "image_urls": [f"file://{folder}/red.png", "file://blue.png"],
            },
            {"id": "1", "conversations": [user("<image>3+4?")], "answer": "$7$", "image_urls": ["file:///no.png"]},
        ],
        [
            {
                "id": "0",
                "prompt": [system("Think."), user("Which is red?")],
                "images": [RED, BLUE],
                "answer": "the first",
            }
        ],
        [],
    ),
    "R1-OneVision": Layout(
        "https://huggingface.co/datasets/Fancy-MLLM/R1-Onevision as two converters on GitHub read it: id, image in "
        "base64, conversations of from and value; thoughts in tags as in arXiv:2503.10615. Its card was not at hand",
        lambda folder: [
            {
                "id": "a",
                "image": "red.png",
                "conversations": [
                    human("<image>\nHow many?\nA. 2\nB. 3"),
                    gpt("<think>\nPerhaps 2. No.\n</think>\n\nThere are three.\n\n**Final Answer:** B"),
                ],
            },
            {
                "id": "b",
                "image": base64.b64encode(png("blue", (40, 30))).decode(),
                "conversations": [human("<image>\nHow many?"), gpt("<think> 3? </think>\n\n\\boxed{3}")],
            },
            {
                "id": "c",
                "image": "red.png",
                "conversations": [human("<image>\nWhy?"), gpt("<think> Well. </think>\n\nFirst this.\nThen that.")],
            },
        ],
        [
            {"id": "a", "prompt": [user("How many?\nA. 2\nB. 3")], "images": [RED], "answer": "B"},
            {"id": "b", "prompt": [user("How many?")], "images": [BLUE], "answer": "3"},
        ],
        [],
    ),
    "DeepEyes": Layout(
        "https://huggingface.co/datasets/ChenShawn/DeepEyes-Datasets-47k, as "
        "https://redai-infra.github.io/Relax/en/examples/deepeyes.html tables its columns",
        lambda folder: [verl_row("red"), verl_row("")],
        [VERL_ROW],
        VERL_LEFT_OUT,
        features=VERL,
    ),
    "verl": Layout(
        "https://verl.readthedocs.io/en/latest/preparation/prepare_data.html",
        lambda folder: [verl_row("red")],
        [VERL_ROW],
        VERL_LEFT_OUT,
        features=VERL,
    ),
    "OpenMMReasoner-RL": Layout(
        "https://huggingface.co/datasets/OpenMMReasoner/OpenMMReasoner-RL-74K, a configuration per source; as verl",
        lambda folder: [{**verl_row("red"), "data_source": "wemath_standard"}],
        [VERL_ROW],
        VERL_LEFT_OUT,
        features=VERL,
    ),
    "OpenMMReasoner-SFT": Layout(
        "https://huggingface.co/datasets/OpenMMReasoner/OpenMMReasoner-SFT-874K: chats in OpenAI's parts, as "
        "its trainer lmms-engine takes them. Its card was not at hand",
        lambda folder: [
            {
                "id": "x",
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image_url", "image_url": {"url": "red.png"}},
                            {"type": "text", "text": "Which colour?"},
                        ],
                    },
                    {"role": "assistant", "content": [{"type": "text", "text": "<think>red?</think>\\boxed{red}"}]},
                ],
            }
        ],
        [
            {
                "id": "x",
                "prompt": [user("Which colour?")],
                "images": [RED],
                "completion": "<think>red?</think>\\boxed{red}",
            }
        ],
        [],
        kind="completions",
    ),
    "LLaVA-CoT": Layout(
        "https://huggingface.co/datasets/Xkev/LLaVA-CoT-100k, train.jsonl; stages as in arXiv:2411.10440, section 3.1",
        lambda folder: [
            {"id": "q1", "image": "red.png", "conversations": [human("How many dots?"), gpt(LLAVA_COT)]},
            {
                "id": "q2",
                "image": "blue.png",
                "conversations": [human("<image>\nWhich?"), gpt("Blue."), human("Sure?"), gpt(LLAVA_COT)],
            },
            {"id": "q3", "image": "red.png", "conversations": [human("How many dots?"), gpt(" ")]},
        ],
        [
            {"id": "q1", "prompt": [user("How many dots?")], "images": [RED], "completion": LLAVA_COT},
            {
                "id": "q2",
                "prompt": [user("Which?"), {"role": "assistant", "content": "Blue."}, user("Sure?")],
                "images": [BLUE],
                "completion": LLAVA_COT,
            },
        ],
        [],
        kind="completions",
    ),
    "LLaVA-CoT, to be rewarded": Layout(
        "as above; the conclusion is the answer",
        lambda folder: [{"id": "q1", "image": "red.png", "conversations": [human("How many dots?"), gpt(LLAVA_COT)]}],
        [{"id": "q1", "prompt": [user("How many dots?")], "images": [RED], "answer": "3"}],
        [],
    ),
    "MMPR": Layout(
        "https://huggingface.co/datasets/OpenGVLab/MMPR, README: image, question, chosen, rejected",
        lambda folder: [
            {
                "image": ["red.png", "blue.png"],
                "question": "Image-1: <image>\nImage-2: <image>\nWhich is red?",
                "chosen": "It is the first.",
                "rejected": "It is the second.",
            },
            {"image": "red.png", "question": "<image>\nWhich?", "chosen": "Red.", "rejected": "Red."},
        ],
        [
            {
                "id": "rows-0",
                "prompt": [user("Image-1: <image>\nImage-2: <image>\nWhich is red?")],
                "images": [RED, BLUE],
                "chosen": [{"role": "assistant", "content": "It is the first."}],
                "rejected": [{"role": "assistant", "content": "It is the second."}],
            }
        ],
        [],
        kind="preferences",
    ),
    "LLaMA-Factory, DPO": Layout(
        "https://github.com/hiyouga/LLaMA-Factory/blob/main/data/README.md, 'Preference Dataset' of sharegpt",
        lambda folder: [
            {
                "conversations": [human("<image>Which?")],
                "chosen": gpt("Red."),
                "rejected": gpt("Blue."),
                "images": ["red.png"],
            },
            {"conversations": [human("Which?")], "chosen": gpt(""), "rejected": gpt("Blue."), "images": []},
        ],
        [PREFERENCE],
        [],
        kind="preferences",
    ),
    "ms-swift, DPO": Layout(
        "https://swift.readthedocs.io/en/latest/Customization/Custom-dataset.html, 'RLHF'",
        lambda folder: [
            {
                "messages": [user("<image>Which?"), {"role": "assistant", "content": "Red."}],
                "rejected_response": "Blue.",
                "images": ["red.png"],
            },
            {"messages": [user("Which?")], "rejected_response": "Blue.", "images": []},
        ],
        [PREFERENCE],
        [],
        kind="preferences",
    ),
    "VisualPRM400K": Layout(
        "https://huggingface.co/datasets/OpenGVLab/VisualPRM400K; turns as OpenGVLab/InternVL writes them in "
        "tools/reasoning_data_pipeline",
        lambda folder: [
            {
                "id": -1,
                "image": "red.png",
                "conversations": [
                    {"from": "system", "value": "Judge the steps."},
                    human("### Question:\n<image>\nWhich colour?\n\n### Solution Process:\nIt is warm."),
                    gpt("+"),
                    human("So it is blue."),
                    gpt("-"),
                ],
            },
            {"id": -1, "image": "red.png", "conversations": [human("Which colour?"), gpt("Red.")]},
        ],
        [
            {
                "id": "-1",
                "prompt": [user("Which colour?")],
                "images": [RED],
                "steps": ["It is warm.", "So it is blue."],
                "step_labels": [1.0, 0.0],
            }
        ],
        [],
        kind="steps",
    ),
    "VisualPRM400K-Raw": Layout(
        "https://huggingface.co/datasets/OpenGVLab/VisualPRM400K-v1.1-Raw, README, 'Data fields'; a step is right if "
        "its expected accuracy is above 0 (README of VisualPRM400K)",
        lambda folder: [
            {
                "image": "red.png",
                "question": "<image>\nWhich colour?",
                "answer": "red",
                "steps_with_score": [
                    {"step": "It is warm.", "score": 0.0625, "num_mc_correct": 1, "num_mc_total": 16},
                    {"step": "So it is blue.", "score": 0.0, "num_mc_correct": 0, "num_mc_total": 16},
                ],
                "num_mc_sequences": 16,
            },
            {"image": "red.png", "question": "Which?", "steps_with_score": [{"step": "Red.", "score": 1.5}]},
        ],
        [
            {
                "id": "rows-0",
                "prompt": [user("Which colour?")],
                "images": [RED],
                "steps": ["It is warm.", "So it is blue."],
                "step_labels": [1.0, 0.0],
            }
        ],
        ["answer", "num_mc_sequences"],
        kind="steps",
    ),
    "VisualProcessBench": Layout(
        "https://huggingface.co/datasets/OpenGVLab/VisualProcessBench, README: 1, 0 and -1 are correct, neutral and "
        "incorrect",
        lambda folder: [
            {
                "image": ["red.png"],
                "question": "Which colour?",
                "answer": "red",
                "response": {"steps": ["Let me see.", "Red.", "No, blue."], "process_correctness": [0, 1, -1]},
                "policy_model": "gpt-4o",
                "data_source": "MathVerse",
            },
            {
                "image": ["red.png"],
                "question": "Which?",
                "response": {"steps": ["Red."], "process_correctness": [1, 1]},
            },
        ],
        [
            {
                "id": "rows-0",
                "prompt": [user("Which colour?")],
                "images": [RED],
                "steps": ["Let me see.", "Red.", "No, blue."],
                "step_labels": [None, 1.0, 0.0],
            }
        ],
        ["answer", "policy_model", "data_source"],
        kind="steps",
    ),
    "The Cauldron": Layout(
        "https://huggingface.co/datasets/HuggingFaceM4/the_cauldron, README: images, and texts of user, assistant and "
        "source; so has HuggingFaceM4/FineVision",
        lambda folder: [
            {
                "images": [RED_FILE],
                "texts": [
                    {"user": "Which?", "assistant": "Red.", "source": "AI2D"},
                    {"user": "Sure?", "assistant": "Yes.", "source": "AI2D"},
                ],
            }
        ],
        [
            {
                "id": "rows-0",
                "prompt": [user("Which?"), {"role": "assistant", "content": "Red."}, user("Sure?")],
                "images": [RED],
                "completion": "Yes.",
            }
        ],
        [],
        kind="completions",
        features=Features({"images": List(Image()), "texts": List({"user": TEXT, "assistant": TEXT, "source": TEXT})}),
    ),
    "ms-swift, ShareGPT": Layout(
        "https://swift.readthedocs.io/en/latest/Customization/Custom-dataset.html, 'ShareGPT format'",
        lambda folder: [
            {"conversation": [{"human": "<image>Which?", "assistant": "Red."}], "images": ["red.png"]},
            {"conversation": [{"human": "Which?", "assistant": ""}], "images": []},
        ],
        [{"id": "rows-0", "prompt": [user("Which?")], "images": [RED], "completion": "Red."}],
        [],
        kind="completions",
    ),
    "We-Math 2.0": Layout(
        "https://huggingface.co/datasets/We-Math/We-Math2.0-Standard, split 'standard', as converters on GitHub read "
        "it: question, answer, image",
        lambda folder: [
            {
                "id": "5",
                "image": RED_FILE,
                "question": "<image>\nWhich angle is right?\nA. α\nB. β",
                "answer": "B",
                "knowledge": "Angles",
            }
        ],
        [{"id": "5", "prompt": [user("Which angle is right?\nA. α\nB. β")], "images": [RED], "answer": "B"}],
        ["knowledge"],
        features=Features({"id": TEXT, "image": Image(), "question": TEXT, "answer": TEXT, "knowledge": TEXT}),
    ),
}
REFUSED = {
    "MM-Eureka": ("image_urls", "missing image file", "'/no.png' does not exist"),
    "R1-OneVision": ("conversations", "no answer in the solution", "is a whole solution"),
    "DeepEyes": ("reward_model.ground_truth", "empty answer", "the answer is ''"),
    "LLaVA-CoT": ("conversations", "empty answer", "the answer is ' '"),
    "MMPR": ("rejected", "equal answers", "chosen and rejected are the same, 'Red.'"),
    "LLaMA-Factory, DPO": ("chosen", "empty answer", "the answer is ''"),
    "ms-swift, DPO": ("messages", "empty answer", "the answer is None; expected text, or messages that end with it"),
    "ms-swift, ShareGPT": ("conversation", "empty answer", "the answer is ''"),
    "VisualPRM400K": ("conversations", "no labelled steps", "expected the turns of VisualPRM400K"),
    "VisualPRM400K-Raw": ("steps_with_score", "no labelled steps", "the score 1.5; expected a share from 0 to 1"),
    "VisualProcessBench": ("response", "no labelled steps", "there are 1 steps and 2 labels"),
}


def saved(layout: Layout, folder: Path) -> Path:
    rows = layout.rows(folder)
    if layout.features is None:
        return write_lines(folder / "rows.jsonl", rows)
    Dataset.from_list(rows, features=layout.features).to_parquet(folder / "rows.parquet")
    return folder / "rows.parquet"
