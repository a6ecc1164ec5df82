"""The size of the images that a run reads."""

from kinfolk.data.files.image_rows import Size
from kinfolk.layers.embeddings.patches import Patches
from kinfolk.models.model import Model
from kinfolk.runs.metadata import ReadingNotes


def size_of(notes: ReadingNotes, model: Model) -> Size | None:
    """Return the size of pictures that a run judges; None if it judges texts.

    What was taught here says so in its run folder, and what reads patches is made for one size.
    """
    reader = model.embedding
    if notes.pictures is not None:
        height, width, channels = notes.pictures
        return height, width, channels
    if isinstance(reader, Patches):
        return model.max_len // (reader.columns * reader.channels), reader.columns, reader.channels
    return None
