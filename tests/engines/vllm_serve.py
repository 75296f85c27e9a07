"""`vllm serve` for the tests: `python vllm_serve.py MODEL [OPTION …]`."""

import os
import sys

import torch

if __name__ == "__main__":
    if not torch.cuda.is_available():
        # the engine's process is forked, so that it finds this, too: repacked weights could not be replaced
        os.environ |= {"VLLM_WORKER_MULTIPROCESSING_METHOD": "fork", "TORCH_COMPILE_DISABLE": "1"}
        import vllm._custom_ops

        vllm._custom_ops._supports_onednn = False
    from vllm.entrypoints.cli.main import main

    sys.argv = ["vllm", "serve", *sys.argv[1:]]
    main()
