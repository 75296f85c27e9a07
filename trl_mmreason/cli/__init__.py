"""The command `mmreason`: its sub-commands, and the doctor."""
