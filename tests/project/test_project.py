"""Files around the package: workflows call targets that exist, and what packages are published by is valid."""

import ast
import os
import pkgutil
import re
import subprocess
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from shutil import copy2

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import trl_mmreason
from trl_mmreason.evaluation.methods import METHODS

try:
    import tomllib
except ImportError:  # Python 3.10, where pytest brings it
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TARGETS = set(" ".join(re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)).split())


def named(paths):
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.name)


def jobs_of(path):
    return yaml.safe_load(path.read_text())["jobs"].values()


@named(WORKFLOWS)
def test_a_workflow_calls_targets_of_the_makefile(path):
    commands = [step["run"] for job in jobs_of(path) for step in job["steps"] if "run" in step]
    targets = {target for command in commands for target in re.findall(r"^make ([\w-]+)", command, re.MULTILINE)}
    assert targets
    assert targets <= TARGETS


@named(WORKFLOWS)
def test_a_workflow_uses_versions_of_python_that_the_package_supports(path):
    versions = []
    for job in jobs_of(path):
        given = [step["with"]["python-version"] for step in job["steps"] if "setup-python" in step.get("uses", "")]
        matrix = job.get("strategy", {}).get("matrix", {}).get("python-version", [])
        versions += matrix if given == ["${{ matrix.python-version }}"] else given
    assert versions
    assert all(isinstance(version, str) for version in versions)  # 3.10 without quotes is 3.1
    assert all(SpecifierSet(PROJECT["requires-python"]).contains(version) for version in versions)
    if path.stem == "tests":
        assert {"3.10", "3.12"} <= set(versions)


def test_only_the_job_that_publishes_may_ask_for_an_identity():
    permissions = {
        (path.stem, name): job.get("permissions")
        for path in WORKFLOWS
        for name, job in yaml.safe_load(path.read_text())["jobs"].items()
    }
    assert {key for key, given in permissions.items() if given} == {("release", "publish")}
    assert permissions["release", "publish"] == {"id-token": "write"}
    assert all(yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"} for path in WORKFLOWS)


def pins_of(name):
    """Package → pinned version of a file of constraints."""
    return dict(line.split("==") for line in (ROOT / name).read_text().splitlines() if not line.startswith("#"))


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-engines.txt"])
def test_pinned_versions_are_those_that_the_package_and_trackio_accept(name):
    extras = PROJECT["optional-dependencies"].values()
    wanted = [Requirement(line) for line in (*PROJECT["dependencies"], *(line for extra in extras for line in extra))]
    wanted.append(Requirement("pillow<13"))  # trackio 0.43, of the extra `tracking`
    pins = pins_of(name)
    refused = [str(one) for one in wanted if one.name in pins and not one.specifier.contains(pins[one.name])]
    assert refused == []


def test_what_private_parts_are_relied_on_has_a_ceiling_and_the_workflows_test_both_ends():
    wanted = {one.name: one.specifier for one in map(Requirement, PROJECT["dependencies"])}
    next_series = {"peft": "0.22", "transformers": "5.25", "trl": "1.17"}
    for name, version in next_series.items():
        assert not wanted[name].contains(version), name
    (tests,) = (path for path in WORKFLOWS if path.stem == "tests")
    assert {"make test-oldest", "make test-newest"} <= {
        " ".join(step["run"].split()[:2]) for job in jobs_of(tests) for step in job["steps"] if "run" in step
    }


def test_vllm_is_installed_by_a_line_without_constraints():
    """`constraints.txt` has a newer transformers than vLLM accepts."""
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    lines = [line for page in pages for line in page.read_text().splitlines() if "pip install" in line]
    assert any("[vllm" in line for line in lines)
    assert [line for line in lines if "vllm" in line and "constraints.txt" in line] == []


def test_the_citation_has_its_required_keys_and_the_package_s_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["authors"] == PROJECT["authors"] == [{"name": "The trl-mmreason authors"}]
    assert citation["version"] == PROJECT["version"] == trl_mmreason.__version__
    assert citation["license"] == PROJECT["license"]


def test_the_changelog_names_this_version():
    log = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## \[(.+?)\]", log, re.MULTILINE)[0] == "Unreleased"
    assert f"To become {PROJECT['version']}" in log
    kinds = re.findall(r"^### (.+)", log, re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


@pytest.mark.parametrize("address", ["https://example.com/owner/name", ""])
def test_the_metadata_name_the_repository_that_the_release_workflow_names(address, tmp_path):
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        copy2(ROOT / name, tmp_path)
    code = "from setuptools.build_meta import *; print(prepare_metadata_for_build_wheel('.'))"
    command, environment = [sys.executable, "-c", code], {**os.environ, "REPOSITORY_URL": address}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    [metadata] = tmp_path.glob("*.dist-info/METADATA")
    urls = re.findall(r"^Project-URL: (.+)", metadata.read_text(), re.MULTILINE)
    assert urls[:1] == ([f"Repository, {address}"] if address else [])
    [build] = [step for step in [*jobs_of(WORKFLOWS[1])][0]["steps"] if "make wheel-test" in step.get("run", "")]
    assert build["env"]["REPOSITORY_URL"] == "${{ github.server_url }}/${{ github.repository }}"


def test_every_module_is_in_a_layer_but_a_method_s_folder_need_not_be():
    layers = PYPROJECT["tool"]["importlinter"]["contracts"][0]["layers"]
    modules = {module.name for module in pkgutil.iter_modules(trl_mmreason.__path__)}
    assert modules - set(re.findall(r"\w+", " ".join(layers))) <= set(METHODS)


def test_what_modules_import_comes_with_the_package_without_extras():
    """What a module imports in its first lines is needed by whoever loads it; tests run where all extras are."""
    needed, found = {"trl-mmreason"}, [Requirement(text) for text in PROJECT["dependencies"]]
    while found:
        requirement = found.pop()
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            name = canonicalize_name(requirement.name)
            found += [] if name in needed else map(Requirement, requires(name) or [])
            needed.add(name)
    providers = packages_distributions()
    for path in (ROOT / "trl_mmreason").rglob("*.py"):
        lines = ast.parse(path.read_text(encoding="utf-8")).body
        imported = {alias.name for line in lines if isinstance(line, ast.Import) for alias in line.names}
        imported |= {line.module for line in lines if isinstance(line, ast.ImportFrom) and not line.level}
        own = {"vllm"} if path.name.startswith("vllm_") else set()  # modules that vLLM itself loads
        for module in {name.partition(".")[0] for name in imported} - sys.stdlib_module_names - own:
            assert needed & set(map(canonicalize_name, providers[module])), f"{path} imports {module}"
