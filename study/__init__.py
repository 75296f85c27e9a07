"""Do the papers' claims hold on the miniature? Arms that start alike, their results, and a verdict on each claim."""
