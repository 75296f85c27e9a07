"""The sub-commands of `mmreason`, one per file: the docstring is the help, `add` declares the arguments, `run` runs.

What a command needs it imports when it runs, so that `mmreason --help` answers at once.
"""
