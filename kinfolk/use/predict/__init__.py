"""What a trained model says of rows of a file: classes, numbers, tags, answers, vectors; and how right it is."""
