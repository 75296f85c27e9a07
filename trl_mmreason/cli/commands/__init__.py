"""The sub-commands of `mmreason`, one a file: `add` declares the arguments, and what a command needs it imports when it
runs, so that `mmreason --help` answers at once.
"""
