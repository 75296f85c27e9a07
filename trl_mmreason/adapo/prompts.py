"""The prompt of AdaPO."""

EVALUATION_PROMPT = (
    "There might be an error in the solution, please evaluate the previous solution and provide a final answer."
)
