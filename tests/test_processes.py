"""A forked script ends as `python SCRIPT` does."""

import pytest
from processes import run

pytestmark = pytest.mark.full

SCRIPT = """
import os, sys, datasets
print(os.getcwd(), *sys.argv[1:], __name__, datasets.config.HF_DATASETS_CACHE)
sys.exit("ended")
"""


def test_folder_arguments_cache_output_and_exit_code_are_those_of_python(tmp_path):
    script, folder, cache = tmp_path / "script.py", tmp_path / "folder", tmp_path / "cache"
    script.write_text(SCRIPT)
    folder.mkdir()
    done = run(script, "a", 1, cwd=folder, environment={"HF_DATASETS_CACHE": str(cache)})
    assert done.returncode == 1
    assert done.stdout == f"{folder} a 1 __main__ {cache}\n"
    assert done.stderr.endswith("ended\n")


def test_a_script_that_does_not_end_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import time\ntime.sleep(600)\n")
    assert run(script, cwd=tmp_path, seconds=1).returncode == -9
