"""`command_run.py` with a pause before each save, for tests that kill it halfway: a fast machine would be through."""

import time

from trl_mmreason.cli.main import main
from trl_mmreason.jobs.store import Store

save = Store.save


def paced(self, *arguments):
    time.sleep(0.03)
    save(self, *arguments)


Store.save = paced  # type: ignore[method-assign]
main()
