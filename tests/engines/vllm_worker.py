"""An extension of vLLM's worker for the tests: what its model holds."""

import hashlib

import torch
from safetensors.torch import load_file


class Weights:
    """Tells of each weight of the model, zeroes them, and loads those of a file."""

    def digests(self):
        """Name → digest of the weight's bytes."""
        return {
            name: hashlib.sha256(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()).hexdigest()
            for name, weight in self.model_runner.model.named_parameters()
        }

    @torch.no_grad()
    def zero(self):
        """Set all weights to zero."""
        for weight in self.model_runner.model.parameters():
            weight.zero_()

    def load_file(self, path):
        """Load the weights of a checkpoint's file."""
        self.model_runner.model.load_weights(load_file(path).items())
