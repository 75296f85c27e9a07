"""The command `mmreason` as a script, `python command_run.py reflect …`, for the tests of two processes."""

from trl_mmreason.cli.main import main

main()
