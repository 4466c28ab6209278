"""Consumer groups on disk: the journal, the rows and the committed offsets."""
