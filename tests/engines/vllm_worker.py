"""An extension of vLLM's worker for the tests: weights from a file, where TRL sends them over NCCL."""

import torch
from safetensors.torch import load_file

if not torch.cuda.is_available():
    import vllm._custom_ops

    vllm._custom_ops._supports_onednn = False  # it repacks weights, and new ones could not be loaded


class FileWeights:
    """Loads named tensors into the model, as TRL's colocated mode does."""

    def load_file(self, path):
        self.model_runner.model.load_weights(load_file(path).items())
