"""Declares the two compiled operators that a CUDA build of torchvision lacks beside a CPU torch, before it is imported.

Its image functions, which processors use, need neither. `environment.py` puts this into site-packages, and a .pth file
imports it in every process.
"""

import sys


class _Declare:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(_Declare)
            import torch

            _Declare.library = torch.library.Library("torchvision", "FRAGMENT")  # what goes takes its operators along
            for operator in ("nms", "qnms"):
                _Declare.library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


sys.meta_path.insert(0, _Declare)
