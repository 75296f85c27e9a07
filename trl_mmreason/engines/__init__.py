"""What vLLM, ZeRO and FSDP2 need put right, each with a test that says when it can go."""
