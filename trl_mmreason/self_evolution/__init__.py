"""Self-evolution: GRPO without answers, on the policy's agreement with itself and a frozen judge's second opinion."""
