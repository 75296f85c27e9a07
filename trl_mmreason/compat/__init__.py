"""What is put right for the code of others, each with a test that says when it can go."""
