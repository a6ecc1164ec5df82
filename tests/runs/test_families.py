"""Every importable family beside transformers: logits, token ids, greedy and beam search, export and reload."""

import contextlib
import json
import warnings

import pytest
import tokenizers
import torch

import kinfolk as kf
from kinfolk.cli.main import main
from kinfolk.core.generation_ids import GenerationIds
from kinfolk.core.rng import Rng
from kinfolk.data import Batches, Tokenizer, open_data
from kinfolk.objectives.sequence import SequenceToSequence
from kinfolk.runs.huggingface.folder import FORMATS, load_formats, open_folder
from kinfolk.runs.vocabulary import vocabulary_of
from tests.runs.hard_strings import hard_strings, sentences
from tests.runs.test_llama_formats import Wide, eager
from tests.runs.test_llama_formats import original as decoder
from tests.runs.test_parity import (
    APART,
    BERT,
    BUCKETS,
    DISTIL,
    FUNNEL,
    GPT,
    ROUNDED,
    SIDES,
    SWITCH,
    T5,
    WINDOWS,
    XLNET,
    batch,
    in_double,  # noqa: F401
    ours,
    same,
    their_model,
    theirs,
)

transformers = pytest.importorskip("transformers", reason="it is the other side of these tests")
V = 300
PIECE = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
ENDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
LOCAL = {"attn_layers": ["local", "local"], "hidden_size": 24, "num_attention_heads": 3, "attention_head_size": 8}
LOCAL |= {"feed_forward_size": 40, "is_decoder": True, "axial_pos_embds": False, "local_attn_chunk_length": 4}
LOCAL |= {"max_position_embeddings": 32, "vocab_size": V, "eos_token_id": 1, "pad_token_id": 0}
LOCAL |= {"hidden_dropout_prob": 0.0, "local_attention_probs_dropout_prob": 0.0}
CASES = {
    "bert": ("BertForMaskedLM", BERT, "words"),
    "distilbert": ("DistilBertForMaskedLM", DISTIL, "words"),
    "electra": ("ElectraForMaskedLM", BERT | {"embedding_size": 24}, "words"),
    "funnel": ("FunnelForMaskedLM", FUNNEL | {"block_sizes": [2, 1]}, "words"),
    "albert": ("AlbertForMaskedLM", BERT | {"embedding_size": 5}, "albert"),
    "roberta": ("RobertaForMaskedLM", BERT | ENDS, "bytes"),
    "longformer": ("LongformerForMaskedLM", WINDOWS | ENDS, "bytes"),
    "camembert": ("CamembertForMaskedLM", BERT | ENDS, "camembert"),
    "deberta": ("DebertaForMaskedLM", APART, "deberta"),
    "deberta-v2": ("DebertaV2ForMaskedLM", BUCKETS, "deberta-v2"),
    "big_bird": ("BigBirdForMaskedLM", BERT | {"attention_type": "original_full"}, "big_bird"),
    "modernbert": (
        "ModernBertForMaskedLM",
        {"hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 40}
        | {"max_position_embeddings": 64, "local_attention": 6, "cls_token_id": 1, "sep_token_id": 2}
        | ENDS,
        "modernbert",
    ),
    "xlnet": ("XLNetLMHeadModel", XLNET, "xlnet"),
    "gpt2": ("GPT2LMHeadModel", GPT | {"bos_token_id": 0, "eos_token_id": 51, "pad_token_id": 1}, "gpt2"),
    "openai-gpt": ("OpenAIGPTLMHeadModel", GPT | {"eos_token_id": 7}, "letters"),
    "reformer": ("ReformerModelWithLMHead", LOCAL, "reformer"),
    "t5": ("T5ForConditionalGeneration", T5 | PIECE, "t5"),
    "switch_transformers": ("SwitchTransformersForConditionalGeneration", SWITCH | PIECE, "t5"),
    "bart": (
        "BartForConditionalGeneration",
        SIDES | ENDS | {"decoder_start_token_id": 2, "forced_eos_token_id": 2, "max_position_embeddings": 40},
        "bytes",
    ),
    "marian": (
        "MarianMTModel",
        SIDES
        | {"eos_token_id": 0, "pad_token_id": 1, "decoder_start_token_id": 1, "forced_eos_token_id": 0}
        | {"max_position_embeddings": 40},
        "whole",
    ),
}
PICTURES = {"vit": ("ViTForImageClassification", {"image_size": [12, 8], "patch_size": 4, "num_labels": 5})}
"""Families without text: what an image processor makes of a picture stands where token ids do for the others."""
DECODERS = {
    "llama": ("llama", "llama"),
    "mistral": ("mistral", "llama"),
    "qwen2": ("qwen2", "qwen2"),
    "qwen3": ("qwen3", "qwen2"),
    "olmo2": ("olmo2", "gpt_neox"),
    "gemma2": ("gemma2", "gemma"),
    "gemma3_text": ("gemma3", "gemma"),
    "mixtral": ("mixtral", "llama"),
    "gpt_oss": ("gpt-oss", "gpt_neox"),
    "deepseek_v3": ("deepseek-v3", "gpt_neox"),
    "diffllama": ("differential", "llama"),
    "smollm3": ("smollm3", "gpt_neox"),
    "gpt_neox": ("gpt-neox", "gpt_neox"),
    "phi": ("phi", "codegen"),
    "mamba": ("mamba", "gpt_neox"),
    "mamba2": ("mamba2", "gpt_neox"),
}
"""Decoders after 2022: the case of tests/runs/test_llama_formats.py that makes their weights, and their tokenizer."""
GENERATES = ["gpt2", "openai-gpt", "reformer", "t5", "switch_transformers", "bart", "marian", *DECODERS]
BEAMS = [(1.0, False), (2.0, True), (0.0, "never"), (-1.0, False)]
STOPPING = {False: "estimate", True: "full", "never": "never"}


def trained(model, trainer, before, names):
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = before
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet() if "bytes" in names else []
    specials = [name for name in names if name != "bytes"]
    how = trainer(vocab_size=V, special_tokens=specials, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(sentences(), how)
    return json.loads(made.to_str())["model"]


def byte_pairs(names):
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made = trained(tokenizers.models.BPE(), tokenizers.trainers.BpeTrainer, level, ["bytes", *names])
    return {"vocab": made["vocab"], "merges": [tuple(pair) for pair in made["merges"]]}


def spaced_pairs(names):
    """Byte pairs over letters with a mark for spaces, and a token for every byte beside them, as SentencePiece has."""
    before = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    special = [*names, *(f"<0x{i:02X}>" for i in range(256))]
    model = tokenizers.models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    how = tokenizers.trainers.BpeTrainer(vocab_size=2 * V, special_tokens=special, show_progress=False)
    whole = tokenizers.Tokenizer(model)
    whole.pre_tokenizer = before
    whole.train_from_iterator(sentences(), how)
    made = json.loads(whole.to_str())["model"]
    return {"vocab": made["vocab"], "merges": [tuple(pair) for pair in made["merges"]]}


OWN = {
    "llama": lambda: transformers.LlamaTokenizer(**spaced_pairs(["<unk>", "<s>", "</s>"])),
    "gemma": lambda: transformers.GemmaTokenizer(**spaced_pairs(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"])),
    "qwen2": lambda: transformers.Qwen2Tokenizer(**byte_pairs(["<|endoftext|>"])),
    "gpt_neox": lambda: transformers.GPTNeoXTokenizer(**byte_pairs(["<|endoftext|>", "<|padding|>"])),
    "codegen": lambda: transformers.CodeGenTokenizer(**byte_pairs(["<|endoftext|>"])),
    "modernbert": lambda: bracketed(),
}


def bracketed():
    """Byte pairs with [CLS] and [SEP] around a text, of no class of its own (ModernBERT)."""
    names = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    whole = tokenizers.Tokenizer(tokenizers.models.BPE(**byte_pairs(names)))
    whole.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    whole.decoder = tokenizers.decoders.ByteLevel()
    ends = [(name, whole.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    whole.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", ends)
    roles = {f"{name.strip('[]').lower()}_token": name for name in names}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=whole, **roles)


def single(case):
    """Compute in double precision what their class computes in single."""
    return Wide() if case in DECODERS or case == "modernbert" else contextlib.nullcontext()


def their_tokenizer(kind, folder):
    """A tokenizer as transformers makes it, of each family's own class."""
    if kind in OWN:
        return OWN[kind]()
    if kind == "words":
        letters = sorted({letter for line in sentences() for letter in line.casefold() if letter.strip()})
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
        words += ["hello", "world", "##ing", "run", "\u2028", "caf", "##é"]
        return transformers.BertTokenizer(vocab={word: i for i, word in enumerate(dict.fromkeys(words))})
    if kind in ("bytes", "whole"):
        return transformers.RobertaTokenizer(**byte_pairs(["<s>", "<pad>", "</s>", "<unk>", "<mask>"]))
    if kind == "deberta":
        return transformers.DebertaTokenizer(**byte_pairs(["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]))
    if kind == "gpt2":
        return transformers.GPT2Tokenizer(
            **byte_pairs(["<BOS>", "<PAD>"]), bos_token="<BOS>", eos_token="3", unk_token="<BOS>"
        )
    if kind == "letters":
        split = tokenizers.pre_tokenizers.BertPreTokenizer()
        model = tokenizers.models.BPE(unk_token="<unk>", end_of_word_suffix="</w>")
        trainer = lambda **how: tokenizers.trainers.BpeTrainer(end_of_word_suffix="</w>", **how)  # noqa: E731
        made = trained(model, trainer, split, ["<unk>"])
        return transformers.OpenAIGPTTokenizer(vocab=made["vocab"], merges=[tuple(pair) for pair in made["merges"]])
    pieces = pytest.importorskip("tests.runs.test_sentencepiece", reason="sentencepiece trains these files")
    name, algorithm, options = pieces.FAMILIES[kind]
    pieces.trained(folder / name, algorithm, "nmt_nfkc", **options)
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    return transformers.AutoTokenizer.from_pretrained(folder)


def same_ids(ours, inner, theirs):
    """Both with the special tokens around a text and without; an empty text too."""
    for text in hard_strings():
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"], ascii(text)
        assert inner.encode(text).ids == theirs(text)["input_ids"], ascii(text)


def named_ids(tokenizer):
    """Return the id of every special token that has a role."""
    roles = ("pad", "bos", "eos", "unk", "sep", "cls", "mask")
    ids = {role: getattr(tokenizer, f"{role}_token_id") for role in roles}
    return {role: i for role, i in ids.items() if i is not None}


def told(original, tokenizer):
    """Prompts of a generating model: two sources of unequal lengths, or one text."""
    pairs = original.config.is_encoder_decoder
    texts = ["Hello world, running", "the café"] if pairs else ["Hello the world"]
    return [tokenizer(text)["input_ids"] for text in texts]


def written(model, rows, n, **how):
    """What transformers writes, without what is behind an end."""
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    with warnings.catch_warnings(action="ignore"), torch.random.fork_rng(devices=[]):
        found = model.generate(tokens, attention_mask=mask, max_new_tokens=n, do_sample=False, **how).tolist()
    stops = model.generation_config.eos_token_id
    stops = stops if isinstance(stops, list) else [stops]
    begun = 1 if model.config.is_encoder_decoder else width
    ends = [next((i + 1 for i, t in enumerate(row) if i >= begun and t in stops), len(row)) for row in found]
    return [row[:end] for row, end in zip(found, ends, strict=True)]


def same_texts(original, model, rows, n=7):
    assert kf.generate(model, rows, n, greedy=True) == written(original, rows, n)
    for penalty, early in BEAMS:
        how = {"length_penalty": penalty, "length_norm": "tokens", "early_stopping": STOPPING[early]}
        wanted = written(original, rows, n, num_beams=3, length_penalty=penalty, early_stopping=early)
        assert kf.generate(model, rows, n, beams=3, **how) == wanted, (penalty, early)


def made(case, folder):
    """A small checkpoint with random weights and its tokenizer."""
    folder.mkdir()
    if case in DECODERS:
        name, kind = DECODERS[case]
        tokenizer = their_tokenizer(kind, folder)
        ids = {f"{which}_token_id": getattr(tokenizer, f"{which}_token_id") for which in ("bos", "eos", "pad")}
        original = decoder(name, vocab_size=len(tokenizer), **ids)
    else:
        name, numbers, kind = CASES[case]
        tokenizer = their_tokenizer(kind, folder)
        n = max(len(tokenizer), tokenizer.vocab_size, V if kind == "t5" else 0)
        with single(case):
            original = their_model(name, numbers | {"vocab_size": n})
    for file in folder.iterdir():
        file.unlink()
    if case in GENERATES:
        # a token that it does write ends its texts
        if hasattr(original, "lm_head") and case == "reformer":
            torch.nn.init.zeros_(original.lm_head.bias)
        text = written(original, told(original, tokenizer)[:1], 6)[0]
        original.generation_config.eos_token_id = [text[-2], original.config.eos_token_id]
        original.generation_config.pad_token_id = original.config.pad_token_id or 0
    original.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return original, tokenizer


def auto_class(original):
    """The Auto class that opens a folder of this kind, which must choose the class itself."""
    if original.config.is_encoder_decoder:
        return transformers.AutoModelForSeq2SeqLM
    masked = type(original).__name__.endswith("ForMaskedLM")
    return transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM


def by_command(run, original, rows, capsys):
    """What `kin generate` writes after the same text, and after none."""
    pairs = original.config.is_encoder_decoder
    start = [original.config.bos_token_id if not pairs and original.config.bos_token_id is not None else 1]
    for text, row in (("Hello world, running" if pairs else "Hello the world", rows[0]), ("", None)):
        if row is None and pairs:
            continue
        capsys.readouterr()
        assert main(["generate", str(run), "--prompt", text, "--greedy", "--max-new", "5", "--json"]) == 0
        ids = json.loads(capsys.readouterr().out)["ids"]
        if row is None:
            row = ids[:1]
            assert row == start or original.config.bos_token_id is None
        assert ids == written(original, [row], 5)[0]


@pytest.mark.parametrize("case", ["bart", "gpt2", "t5"])
def test_tokens_are_forced_and_suppressed_as_in_transformers(case, tmp_path):
    original, tokenizer = made(case, tmp_path / "theirs")
    rows = told(original, tokenizer)
    usual = written(original, rows, 6)[0]
    how, own = original.generation_config, GenerationIds
    how.forced_eos_token_id, how.suppress_tokens = 9, [usual[-1], 11]
    how.forced_bos_token_id, how.begin_suppress_tokens = (8, [usual[-2]]) if case == "bart" else (None, [13])
    original.save_pretrained(tmp_path / "theirs")
    model = open_folder(tmp_path / "theirs").model
    assert model.generation.suppressed_ids == (usual[-1], 11)
    same_texts(original, model, rows)
    assert written(original, rows, 6)[0] != usual
    assert kf.generate(model, rows, 9, greedy=True, no_repeat_ngram=2) == written(
        original, rows, 9, no_repeat_ngram_size=2
    )
    assert kf.generate(model, rows, 9, greedy=True) != written(original, rows, 9, no_repeat_ngram_size=2)
    # saved and loaded, the model still knows
    kf.save(model, tmp_path / "saved")
    assert kf.load(tmp_path / "saved").generation == model.generation != own()


@pytest.mark.parametrize("case", ["t5", "bart", "marian"])
def test_fine_tuning_begins_as_generation_does(case, tmp_path):
    original, tokenizer = made(case, tmp_path / "theirs")
    assert main(["import", str(tmp_path / "theirs"), "--out", str(tmp_path / "run")]) == 0
    pairs = [("Hello world", "the café"), ("running", "of the world")]
    (tmp_path / "pairs.tsv").write_text("a\tb\n" + "".join(f"{a}\t{b}\n" for a, b in pairs * 20), encoding="utf-8")
    file = tmp_path / "run" / "tokenizer.json"
    data = open_data(f"pairs:source=a,target=b:{tmp_path / 'pairs.tsv'}", tokenizer=str(file), cache=tmp_path / "cache")
    read = Batches(split=data.split("train"), batch_size=4, length=32, shuffle=False).at(0)
    model = kf.load(tmp_path / "run")
    assert set(read.tokens[:, 0].tolist()) == {model.generation.start_id} == {original.config.decoder_start_token_id}
    wanted = [tokenizer(a)["input_ids"] for a, _ in pairs]
    for i in range(len(read)):
        assert read.source[i][read.source_keep[i]].tolist() in wanted
        assert int(read.tokens[i][read.keep[i]][-1]) in model.generation.stop_ids
    prepared = SequenceToSequence().prepare(read, Rng(0), vocabulary_of(Tokenizer.load(file)))
    assert set(prepared.tokens[:, 0].tolist()) == {model.generation.start_id}


def test_no_family_is_missing():
    load_formats()
    assert {*CASES, *PICTURES, *DECODERS} == set(FORMATS)


def same_pictures(case, folder):
    """Values that enter and logits: as read, and as the Auto classes read what `kin export` wrote."""
    pytest.importorskip("PIL", reason="their image processor reads with it")
    name, numbers = PICTURES[case]
    body = {key: BERT[key] for key in BERT if key not in ("vocab_size", "max_position_embeddings")}
    original = their_model(name, body | numbers)
    original.save_pretrained(folder / "theirs")
    rows, columns = numbers["image_size"]
    size = {"height": rows, "width": columns}
    theirs_too = transformers.ViTImageProcessorPil(size=size, image_mean=[0.3] * 3, image_std=[0.2] * 3)
    theirs_too.save_pretrained(folder / "theirs")
    values = torch.randint(256, (2, rows, columns, 3), generator=torch.Generator().manual_seed(0))
    pictures = [picture.to(torch.uint8).numpy() for picture in values]
    pixels = theirs_too(pictures, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        wanted = original(pixel_values=pixels.double()).logits
    assert wanted.std() > 1e-3
    # their processor computes in single precision
    found = open_folder(folder / "theirs").model.eval()(values.flatten(1) + 7).logits
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
    run, again = folder / "run", folder / "again"
    assert main(["import", str(folder / "theirs"), "--out", str(run)]) == 0
    assert main(["export", str(run), "--to", "hf", "--out", str(again)]) == 0
    with warnings.catch_warnings(action="ignore"):
        auto = transformers.AutoImageProcessor.from_pretrained(again)
        back = transformers.AutoModelForImageClassification.from_pretrained(again, dtype=torch.float64).eval()
    assert type(back) is type(original)
    torch.testing.assert_close(auto(pictures, return_tensors="pt")["pixel_values"], pixels, rtol=0, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(back(pixel_values=pixels.double()).logits, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", [*CASES, *DECODERS, *PICTURES])
def test_a_family_is_that_of_transformers(case, tmp_path, in_double, capsys):  # noqa: F811
    if case in PICTURES:
        same_pictures(case, tmp_path)
        return
    original, tokenizer = made(case, tmp_path / "theirs")
    imported = open_folder(tmp_path / "theirs")
    tokens, keep = batch()
    keep = torch.ones_like(keep) if case in ("funnel", "xlnet", "reformer") else keep
    tokens = tokens[:, :16] if case == "reformer" else tokens  # whole chunks
    keep = keep[:, : tokens.shape[1]]
    with torch.random.fork_rng(devices=[]), single(case):
        wanted = theirs(original, tokens, keep)
    atol = ROUNDED.get(case, 1e-5 if case in ("funnel", "longformer", "switch_transformers") else 1e-9)
    same(ours(imported.model, tokens, keep), wanted, keep, atol)
    same_ids(imported.own_tokenizer(), open_folder(tmp_path / "theirs").tokenizer, tokenizer)
    rows = told(original, tokenizer) if case in GENERATES else []
    if rows:
        same_texts(original, imported.model, rows)
    run, again = tmp_path / "run", tmp_path / "again"
    assert main(["import", str(tmp_path / "theirs"), "--out", str(run)]) == 0
    assert main(["export", str(run), "--to", "hf", "--out", str(again)]) == 0, capsys.readouterr().err
    with warnings.catch_warnings(action="ignore"):
        auto = transformers.AutoTokenizer.from_pretrained(again)
        back = auto_class(original).from_pretrained(again, dtype=torch.float64, **eager(original)).double().eval()
    assert type(back) is type(original)
    same_ids(Tokenizer.load(run / "tokenizer.json"), open_folder(again).tokenizer, auto)
    for text in hard_strings():
        assert auto(text)["input_ids"] == tokenizer(text)["input_ids"], ascii(text)
    # an exported tokenizer can pad a batch wherever the original could, with the same token
    lost = {role for role, i in named_ids(tokenizer).items() if named_ids(auto).get(role) != i}
    # where tokenizer and model disagree about the end, the model's is what generation stops at
    assert lost <= ({"eos"} if getattr(original.config, "eos_token_id", None) != tokenizer.eos_token_id else set())
    with torch.random.fork_rng(devices=[]), single(case):
        # a run has weights in single precision
        same(theirs(back, tokens, keep), wanted, keep, 1e-5 if case == "modernbert" else max(atol, 1e-6))
    if case == "modernbert":
        assert all(torch.equal(x.float(), original.state_dict()[key].float()) for key, x in back.state_dict().items())
    if rows:
        assert written(back, rows, 7) == written(original, rows, 7)
        assert kf.generate(kf.load(run), rows, 7, greedy=True) == written(original, rows, 7)
        by_command(run, original, rows, capsys)
