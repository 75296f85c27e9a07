"""What vLLM, ZeRO and FSDP2 need corrected, each with a test that says when the correction can go."""
