"""`Run`: anything that was trained, opened in one place and asked the same questions.

    run = Run.open(path)        a run folder, a saved model, a Hugging Face folder or an ONNX export
    run.recipe, run.tokenizer, run.task, run.classes, run.limit, run.start_id, run.stop_ids, run.pad_id
    run.model(), run.learner(), run.engine("onnx"), run.data()

Nothing of a folder is executed: files are checked against the manifest, links that lead outside are refused, plugins
need the user's consent, and sizes are checked before memory is allocated.
"""

import abc
import functools
import hashlib
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from kinfolk.core import contained, manifest
from kinfolk.core.device import shapes_only
from kinfolk.core.errors import CheckpointError, DataError, SpecError
from kinfolk.core.generation_ids import GenerationIds
from kinfolk.core.plain import from_plain, load, read_toml
from kinfolk.data import Data, Tokenizer, open_data
from kinfolk.data.opening import cache_folder
from kinfolk.data.splits.labels import with_classes
from kinfolk.family import registry
from kinfolk.family.recipe import Recipe
from kinfolk.models.folder import load_weights
from kinfolk.models.model import Model, Transformer
from kinfolk.models.room import check_size
from kinfolk.models.undrawn import undrawn
from kinfolk.objectives.distil import open_teachers_by
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.tasks.registry import of_objective
from kinfolk.objectives.tasks.task import Task
from kinfolk.runs import folder, knowledge, onnx_export
from kinfolk.runs.average import averaged
from kinfolk.runs.chat_template import FILE as TEMPLATE
from kinfolk.runs.chat_template import ChatTemplate, template_in
from kinfolk.runs.checkpoint import Checkpoints, weights_file
from kinfolk.runs.engines import opener_of
from kinfolk.runs.huggingface.recipe import recipe_of
from kinfolk.runs.metadata import Metadata, ReadingNotes
from kinfolk.runs.vocabulary import counted, knowing_vocabulary

HUGGING_FACE = "kinfolk.runs.huggingface.run"
"""The layout of Hugging Face's libraries, which runs of our own never need: a megabyte of modules reads it."""


class Run(abc.ABC):
    """A trained model on disk. A subclass is one layout of a folder and registers itself by being defined.

    mark: the file by which a folder of this layout is recognised; layouts are tried in the order of definition.
    own_engine: what runs it where no other engine is named.
    """

    mark: ClassVar[str]
    own_engine: ClassVar[str] = "torch"

    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    def open(path: "str | Path | Run") -> "Run":
        """Open a folder of any layout; a run that is open already is returned as it is."""
        if isinstance(path, Run):
            return path
        path = Path(path)
        if (path / folder.CONFIG).is_file():
            importlib.import_module(HUGGING_FACE)
        layouts = {layout.mark: layout for layout in Run.__subclasses__()}
        for mark, layout in layouts.items():
            if (path / mark).is_file():
                contained.check(path)
                registry.load()
                return layout(path)
        marks = ", ".join({**layouts, folder.CONFIG: None})
        reason = f"none of {marks} is here" if path.exists() else "no such folder"
        raise CheckpointError(
            f"{path}: {reason}; expected a run, a saved model, a Hugging Face folder or an ONNX export"
        )

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.path.resolve().name

    @property
    def metadata(self) -> Metadata:
        """What run.toml says; nothing for other layouts."""
        return Metadata()

    @property
    @abc.abstractmethod
    def recipe(self) -> Recipe:
        """Model, objective and training."""

    @property
    def spec(self) -> Recipe | Model:
        """The recipe that the folder holds, or its model where there is no recipe."""
        return self.recipe

    @property
    @abc.abstractmethod
    def generation(self) -> GenerationIds:
        """The special tokens that generation begins, ends and pads with."""

    @abc.abstractmethod
    def model(self, average: int = 0) -> Transformer:
        """Return the model with its best weights; `average`: the mean of that number of the newest checkpoints."""

    @functools.cached_property
    def own_tokenizer(self) -> Tokenizer | None:
        """Its tokenizer; None if it has none."""
        file = self.path / folder.TOKENIZER
        return Tokenizer.load(file) if file.is_file() else None

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer, without which no text can be read."""
        if self.own_tokenizer is None:
            raise DataError(f"{self.path}: has no tokenizer, so texts cannot be read for it")
        return self.own_tokenizer

    @functools.cached_property
    def chat_template(self) -> ChatTemplate | None:
        """What turns a conversation into a prompt; None if it has no template."""
        if (self.path / manifest.NAME).exists():
            manifest.check(self.path, (TEMPLATE,))
        text = template_in(self.path)
        return None if text is None or self.own_tokenizer is None else ChatTemplate(text, self.own_tokenizer)

    @property
    def tokenizer_file(self) -> str:
        """A file with its tokenizer: its own, or one in the cache where a folder has it in another form."""
        text, file = self.tokenizer.to_json(), self.path / folder.TOKENIZER
        # as we wrote it, or the same in other words
        if file.is_file() and (file.read_bytes() == text.encode() or Tokenizer.load(file).to_json() == text):
            return str(file)
        place = cache_folder() / "tokenizers" / hashlib.sha256(text.encode()).hexdigest()[:16]
        if not (place / folder.TOKENIZER).is_file():
            place.mkdir(parents=True, exist_ok=True)
            self.tokenizer.save(place / folder.TOKENIZER)
        return str(place / folder.TOKENIZER)

    @property
    def task(self) -> Task | None:
        """The task it learnt; None for pre-training objectives beyond language modelling."""
        notes = self.metadata.reading
        n_texts, pictures = (None, None) if notes is None else (notes.sequences, notes.pictures)
        return of_objective(self.recipe.objective, n_texts or 1, image=pictures is not None)

    @property
    def data_kind(self) -> str:
        """The kind of data it learnt from: "text", "pairs", "labelled"; "" where that is not known."""
        return self.metadata.data_kind or ""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of its classes or tags; none where they have no names."""
        return self.metadata.classes or ()

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of its classes or tags; numbers where they have no names."""
        return self.class_names or tuple(map(str, range(self.recipe.model.head.n_labels)))

    @functools.cached_property
    def limit(self) -> int | None:
        """The most positions of an input; None: any number."""
        with shapes_only():
            return Transformer(self.recipe.model).limit

    @property
    def start_id(self) -> int:
        """The token that generation begins with."""
        return self.generation.start_id

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The tokens that end a generated sequence."""
        return self.generation.stop_ids

    @property
    def pad_id(self) -> int:
        """The token behind a sequence that has ended."""
        return self.generation.pad_id

    def learner(self, average: int = 0) -> Learner:
        """Return the model with its objective."""
        learner = self._learner(self.model(average))
        if learner.partner is not None:
            self._load_partner(learner)
        return learner

    def scorer(self, average: int = 0) -> Learner:
        """Return a learner that evaluates; it need not have weights that can be trained."""
        return self.learner(average)

    def _learner(self, model: Transformer) -> Learner:
        """Put the run's objective around a model."""
        recipe = self.recipe
        vocabulary = knowing_vocabulary(recipe, self.tokenizer)
        if recipe.objective.counts:
            vocabulary = counted(vocabulary, self.data())
        return Learner(model, recipe.objective, vocabulary, self.metadata.seed)

    def weights(self) -> Mapping[str, Tensor]:
        """Return the weights by name."""
        return self.model().state_dict()

    def engine(self, name: str = "", threads: int = 0) -> Any:
        """Return what runs the model, by default its own engine; `threads` 0: as many as the engine likes."""
        return opener_of(name or self.own_engine)(self, threads)

    def data(self, source: Mapping[str, Any] | None = None) -> Data:
        """Open the data of the run again, or other data with its tokenizer: other ids would mean other tokens.

        source: arguments of `open_data`; a tokenizer among them is used instead, if it gives the same ids.
        """
        if source is None:
            return self._own_data()
        arguments = {key: value for key, value in source.items() if value is not None}
        name = arguments.pop("name")
        if "tokenizer" not in arguments and "choices" not in arguments:
            arguments["tokenizer"] = self.tokenizer_file
        data = open_data(name, **arguments)
        if not data.tokenizer.agrees(self.tokenizer):
            file = self.tokenizer_file
            raise DataError(f"{name}: was prepared with another tokenizer than {self.path}; prepare it with {file}")
        named = self.class_names
        return with_classes(data, list(named)) if named and data.kind == "labelled" else data

    def _own_data(self) -> Data:
        raise DataError(f"{self.path}: has no data of its own; name some with --data")

    def _load_partner(self, learner: Learner) -> None:
        raise CheckpointError(
            f"{self.path}: has no checkpoint with what objective {learner.objective.kind!r} learnt beside the model"
        )


class TrainedRun(Run):
    """A run folder: spec.toml, run.toml, checkpoints, and weights at the end; see `kinfolk.runs.folder`."""

    mark = folder.RUN

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._metadata = folder.opened(path)

    @property
    def metadata(self) -> Metadata:
        return self._metadata

    @functools.cached_property
    def recipe(self) -> Recipe:
        return knowledge.own(load(Recipe, self.path / folder.SPEC), self.path)

    @property
    def generation(self) -> GenerationIds:
        """Those of the import, or of its tokenizer."""
        if self.metadata.generation is not None:
            return self.metadata.generation
        return GenerationIds() if self.own_tokenizer is None else self.own_tokenizer.generation

    def model(self, average: int = 0) -> Transformer:
        """Return the model with the best weights so far."""
        weights = weights_file(self.path)
        check_size(self.recipe.model, weights)
        model = undrawn(self.recipe.model)
        load_weights(model, weights)
        if average:
            model.load_state_dict(averaged(self.path, average))
        model.generation = self.generation
        return model

    def weights(self) -> Mapping[str, Tensor]:
        """Return the weights by name, as they are in the file."""
        file = weights_file(self.path)
        check_size(self.recipe.model, file)
        return _read_weights(file)

    def _own_data(self) -> Data:
        source = self.metadata.data
        if not source.name:
            return super()._own_data()
        words = Path(source.tokenizer or "")
        if words.suffix == ".json" and not words.is_file():
            # the file it was read from is gone, and the run has kept a copy
            source = source.replace(tokenizer=str(self.path.resolve() / folder.TOKENIZER))
        return open_data(**source.arguments())

    def _load_partner(self, learner: Learner) -> None:
        """Fill what an objective learns besides the model from the checkpoint that the model's weights are from."""
        checkpoints = Checkpoints(self.path / "checkpoints")
        saved = checkpoints.best() or checkpoints.newest()
        tensors = {} if saved is None else saved.tensors("objective")
        own = {name: x for name, x in learner.state_dict().items() if not name.startswith("model.")}
        if set(tensors) != set(own):
            super()._load_partner(learner)
        with torch.no_grad():
            for name, x in own.items():
                x.copy_(tensors[name])


class ExportedRun(Run):
    """An ONNX export: graphs instead of weights; see `kinfolk.runs.onnx_export`."""

    mark = onnx_export.ABOUT
    own_engine = "onnx"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.about = onnx_export.ExportRecord.read(path)

    @functools.cached_property
    def metadata(self) -> Metadata:
        """What the export records of the run: names of classes, and how examples are read."""
        try:
            notes = from_plain(ReadingNotes, self.about.reading, f"{self.path / self.mark}: reading")
        except SpecError as error:
            raise CheckpointError(str(error)) from None
        return Metadata(classes=self.about.classes or None, reading=notes)

    @functools.cached_property
    def recipe(self) -> Recipe:
        return _recipe_in(self.path)

    @property
    def generation(self) -> GenerationIds:
        """The special tokens that the export records."""
        return self.about.generation

    @property
    def data_kind(self) -> str:
        """The kind of data that the run learnt from."""
        return self.about.kind

    @functools.cached_property
    def limit(self) -> int | None:
        return self.about.limit

    def model(self, average: int = 0) -> Transformer:
        """Refuse: graphs have no weights that PyTorch could run."""
        raise SpecError(
            f"{self.path} is an export for onnxruntime and has no weights: predict, embed, eval and generate run it "
            "as it is, serve with --engine onnx; everything else needs the run that was exported"
        )

    def scorer(self, average: int = 0) -> Learner:
        """Return the objective around a model that runs the graphs."""
        if average:
            raise SpecError(f"--average: {self.path}: graphs have the weights they were made of; average, then export")
        with shapes_only():
            learner = self._learner(Transformer(self.recipe.model))
        learner.model = self.engine().as_model(self.recipe.model)
        return learner


class SavedModel(Run):
    """What `kf.save` writes: spec.toml of a model alone, weights, and a tokenizer if it had one."""

    mark = folder.SPEC

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        if (path / manifest.NAME).exists():
            manifest.check(path, (folder.SPEC,))

    @functools.cached_property
    def recipe(self) -> Recipe:
        """The model, and a recipe to go on with it."""
        return _recipe_in(self.path)

    @property
    def spec(self) -> Recipe | Model:
        """The model alone, or a recipe if spec.toml has one."""
        return self.recipe if "model" in read_toml(self.path / folder.SPEC) else self.recipe.model

    @functools.cached_property
    def generation(self) -> GenerationIds:
        """The special tokens that its weights record."""
        return self.model().generation

    def model(self, average: int = 0) -> Transformer:
        file = self.path / folder.WEIGHTS
        if not file.is_file():
            raise CheckpointError(f"{self.path}: no {folder.WEIGHTS} here, so this is not a saved model")
        if average:
            raise SpecError(f"--average: {self.path} is a saved model and has no checkpoints")
        check_size(self.recipe.model, file)
        model = undrawn(self.recipe.model)
        load_weights(model, file)
        return model

    weights = TrainedRun.weights


open_teachers_by(lambda folder: Run.open(folder).model())


def load_model(path: str | Path | Run) -> Transformer:
    """Read the model of a run, a saved model or a Hugging Face folder."""
    return Run.open(path).model()


def _recipe_in(path: Path) -> Recipe:
    """Read spec.toml: a recipe, or a bare model, which gets a recipe to go on with."""
    file = path / folder.SPEC
    if "model" in read_toml(file):
        return knowledge.own(load(Recipe, file), path)
    return recipe_of(load(Model, file), path.name)


def _read_weights(file: Path) -> dict[str, Tensor]:
    try:
        with manifest.verifying(file):
            return load_file(file)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: cannot be read as safetensors: {error}") from None
