"""Rows of two processes, sorted and shared out: `python exchange_run.py - FOLDER WINDOW [differ]`.

Run by test_exchange.py. A row's length tells it from the others, and all its fields follow from it.
"""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator

from trl_mmreason.padding import sort_by_length

LENGTHS = [[9, 3, 8, 7], [4, 2, 5, 6]]


def micro_batches(lengths, device):
    """Two rows each; a prompt of one token, completions as wide as the longest here, 0 to 2 pictures as Qwen's."""
    made = []
    for start in range(0, len(lengths), 2):
        width, shown = max(lengths) - 1, lengths[start : start + 2]
        mask = (torch.arange(width) < torch.tensor(shown).unsqueeze(1) - 1).long()
        pictures = [length % 3 for length in shown]
        grids = [[1, 1, length] for length, count in zip(shown, pictures, strict=True) for _ in range(count)]
        patches = [float(length) for length, count in zip(shown, pictures, strict=True) for _ in range(count * length)]
        prompt = torch.tensor(shown).unsqueeze(1)
        made.append(
            {
                "prompt_ids": prompt,
                "prompt_mask": torch.ones_like(prompt),
                "completion_ids": mask * prompt,
                "completion_mask": mask,
                "turn": 1 + mask,
                "advantages": torch.tensor(shown).float(),
                "kl_coefs": prompt.float().expand(-1, 2),
                "mm_token_type_ids": torch.cat([prompt, mask], dim=1),
                "pixel_values": torch.tensor(patches).unsqueeze(1),
                "image_grid_thw": torch.tensor(grids, dtype=torch.long).view(-1, 3),
                "num_images": pictures,
                "num_items_in_batch": torch.tensor(7),
                "old_per_token_logps": None,
            }
        )
    return made


if __name__ == "__main__":
    folder, window, differ = Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] == ["differ"]
    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    batches = micro_batches(LENGTHS[rank], accelerator.device)
    if differ and rank == 1:
        for batch in batches:
            del batch["mm_token_type_ids"]
    torch.save(sort_by_length(batches, window, accelerator), folder / f"process_{rank}.pt")
