"""The sub-commands of `mmreason`, one per file: `add` declares the arguments, and a command imports what it needs when
it runs, so that `mmreason --help` answers at once.
"""
