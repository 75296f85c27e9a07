"""Corrections of the engines that training runs on; each has a test that says when it can be removed."""
