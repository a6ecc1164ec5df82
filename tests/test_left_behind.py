"""What a test loads is gone when it ends."""

from kinfolk.core import plugins
from kinfolk.core.spec import choices
from kinfolk.data.files.reader import READERS
from kinfolk.layers.norms.norm import Norm
from tests.conftest import plugins_kept_apart

PLUGIN = """
from kinfolk.data.files.text_files import TextReader
from kinfolk.layers.norms.norm import LayerNorm

class Mine(TextReader, kind="mine", suffixes=(".mine",)):
    pass

class Own(LayerNorm, kind="own-norm"):
    pass
"""


def test_no_kind_of_a_plugin_stays(tmp_path):
    """A reader or a task that stayed would claim the files of later tests, in some orders and not in others."""
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN)
    for _ in range(2):
        with plugins_kept_apart():
            plugins.load_plugin(file)
            assert "mine" in READERS
            assert "own-norm" in choices(Norm)
        assert "mine" not in READERS
        assert "own-norm" not in choices(Norm)
