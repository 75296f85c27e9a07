"""Five prompts, of which every second has a picture more than is allowed: `python two_process_prompts.py MODEL FOLDER`.

Run by test_prompt_length.py.
"""

import json
import sys
from pathlib import Path

from accelerate import PartialState
from datasets import Dataset
from PIL import Image
from transformers import AutoProcessor

from trl_mmreason.prompt_length import prompt_length, without_overlong_prompts

model, folder = sys.argv[1], Path(sys.argv[2])
state = PartialState(cpu=True)
assert state.num_processes == 2
picture = Image.new("RGB", (56, 56))
question = [{"role": "user", "content": "How many?"}]
rows = Dataset.from_list([{"id": str(k), "prompt": question, "images": [picture] * (1 + k % 2)} for k in range(5)])
processor = AutoProcessor.from_pretrained(model)
kept = without_overlong_prompts(rows, processor, prompt_length(rows[0], processor), name="Trainer")
(folder / f"{state.process_index}.json").write_text(json.dumps(kept["id"][:]))
state.destroy_process_group()
