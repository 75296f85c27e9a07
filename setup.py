"""What pyproject.toml cannot say.

A wheel carries the recipes inside the package, where `mmreason train` finds them. Its metadata name the repository if
REPOSITORY_URL is set, as in the release workflow.
"""

import os
from pathlib import Path
from shutil import copy2, copytree, ignore_patterns

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithRecipes(build_py):
    """Copies what `trl_mmreason/scripts/recipes.py` looks for; an editable install finds it in the checkout."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        recipes = Path(self.build_lib) / "trl_mmreason/_recipes"
        for folder in ("examples", "configs"):
            copytree(folder, recipes / folder, dirs_exist_ok=True, ignore=ignore_patterns("__pycache__", "study"))
        for versions in Path().glob("constraints*.txt"):
            copy2(versions, recipes)


repository = os.environ.get("REPOSITORY_URL")
parts = {"Repository": "", "Issues": "/issues", "Changelog": "/blob/main/CHANGELOG.md"}
urls = {name: f"{repository}{path}" for name, path in parts.items()} if repository else {}

setup(cmdclass={"build_py": BuildWithRecipes}, project_urls=urls)
