"""From a source's rows to checked rows: prompt, images, answer, choices."""
