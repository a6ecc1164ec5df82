"""Run metadata: the content of run.toml as a typed record, read and written here alone.

seed, data, fingerprint, order     what, besides the recipe, makes two runs the same run
kind, classes, reading             what was learnt from: the kind of data, names of classes, how texts are read
options, choice                    how it is computed: threads, device, precision
command, versions, commit          where it came from; `imported`, `compressed_from` for what was not trained here
generation, plugins                special tokens of an imported model; files with the user's own kinds
"""

import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
import torch

from kinfolk.core.bounds import Bounds, NonNegativeInt, PositiveInt
from kinfolk.core.errors import CheckpointError, SpecError
from kinfolk.core.generation_ids import GenerationIds
from kinfolk.core.plain import from_plain, read_toml, to_plain
from kinfolk.core.spec import Spec
from kinfolk.runs.options import RunOptions

FILE = "run.toml"
IDENTITY = ("seed", "data", "fingerprint")
"""What, besides the spec, makes two runs the same run."""

Seed = Annotated[int, Bounds(-(2**63), 2**64 - 1)]


class DataSource(Spec):
    """Arguments of `open_data` that give the data of a run again; `env` is an environment to act in instead."""

    name: str = ""
    tokenizer: str | None = None
    vocab: PositiveInt | None = None
    valid: str | None = None
    cache: str | None = None
    seed: Seed | None = None
    workers: NonNegativeInt | None = None
    env: str | None = None

    def arguments(self) -> dict[str, Any]:
        """Return them as keyword arguments, without those that are not set."""
        return {key: value for key, value in to_plain(self).items() if key != "env"}


class Plugin(Spec):
    """A user's file whose kinds the run uses; earlier versions recorded the path alone."""

    path: str
    sha256: str = ""


class Versions(Spec):
    """What must be the same for a resumed run to be bit-equal."""

    python: str = ""
    torch: str = ""
    threads: NonNegativeInt = 0


class Precision(Spec):
    """The precision and compilation that were settled when a run began; `begun_with` if they changed since."""

    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    compile: Literal["off", "on"] = "off"
    begun_with: str | None = None


class Checkpoint(Spec):
    """What an imported checkpoint was: its family and head in Hugging Face's words, the rest of config.json as JSON.

    length: the longest text it was made for, where its folder says so.
    """

    model_type: str = ""
    architecture: str = ""
    config: str = "{}"
    length: PositiveInt | None = None


class ReadingNotes(Spec):
    """How labelled examples were read, so that others are read in the same way.

    sequences: texts of an example. window, stride, always: of questions, see `kinfolk.data.splits.answering`.
    asks: what is asked of every word. `pictures`: height, width and channels.
    """

    sequences: PositiveInt | None = None
    window: PositiveInt | None = None
    stride: PositiveInt | None = None
    always: bool | None = None
    asks: str | None = None
    pictures: tuple[PositiveInt, ...] | None = None


class Metadata(Spec):
    """Everything run.toml says. What is None is left out of the file."""

    seed: Seed = 0
    fingerprint: str = ""
    order: PositiveInt | None = None
    plugins: tuple[Plugin, ...] | None = None
    data: DataSource = DataSource()
    data_kind: str | None = None
    options: RunOptions | None = None
    classes: tuple[str, ...] | None = None
    reading: ReadingNotes | None = None
    choice: Precision | None = None
    imported: Checkpoint | None = None
    compressed_from: str | None = None
    generation: GenerationIds | None = None
    command: str | None = None
    versions: Versions | None = None
    commit: str | None = None

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the run.toml of a folder."""
        if not (folder / FILE).is_file():
            raise CheckpointError(f"{folder}: not a run folder: it has no {FILE}")
        try:
            return from_plain(cls, _current(read_toml(folder / FILE)), str(folder / FILE))
        except SpecError as error:
            raise CheckpointError(str(error)) from None

    def text(self) -> str:
        """Return the content of the file."""
        table = to_plain(self)
        return tomli_w.dumps({"kind" if name == "data_kind" else name: value for name, value in table.items()})

    def same_run(self, other: "Metadata") -> bool:
        """Tell whether both describe the same run of one recipe."""
        return all(getattr(self, name) == getattr(other, name) for name in IDENTITY)

    def with_origin(self) -> Self:
        """Return it with the command, versions and commit of this process."""
        versions = Versions(
            python=sys.version.split()[0], torch=str(torch.__version__), threads=torch.get_num_threads()
        )
        return self.replace(command=shlex.join(["kin", *sys.argv[1:]]), versions=versions, commit=_commit())


def _current(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run.toml of any version says, in the words of this one."""
    values = dict(table)
    if "kind" in values:
        values["data_kind"] = values.pop("kind")
    if isinstance(values.get("plugins"), list):
        values["plugins"] = [{"path": each} if isinstance(each, str) else each for each in values["plugins"]]
    if isinstance(values.get("choice"), dict):
        # earlier versions chose by measuring, and recorded the seconds
        values["choice"] = {key: value for key, value in values["choice"].items() if key != "measured"}
    return values


def _commit() -> str:
    """Return the commit of this source tree, or "" where it is not one."""
    with suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    return ""
