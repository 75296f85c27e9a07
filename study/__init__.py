"""Do the papers' claims hold in small? Arms that start alike, what became of them, and a verdict on each claim."""
