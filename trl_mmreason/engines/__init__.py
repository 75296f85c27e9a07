"""Corrections of vLLM, ZeRO and FSDP2, each with a test that fails when it is no longer needed."""
