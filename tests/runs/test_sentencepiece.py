"""SentencePiece files: each family's tokenizer is that of transformers, and without a family that of SentencePiece."""

import io
import json

import pytest

from kinfolk.runs.huggingface.tokenizing import read_tokenizer, sentence_pieces
from tests.runs.hard_strings import hard_strings, sentences

spm = pytest.importorskip("sentencepiece", reason="it trains the files and is the other side of these tests")
T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
BERT = ["[CLS]", "[SEP]", "[MASK]"]
FAMILIES = {
    "t5": ("spiece.model", "unigram", T5),
    "switch_transformers": ("spiece.model", "unigram", T5),
    "albert": (
        "spiece.model",
        "unigram",
        {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": BERT},
    ),
    "xlnet": ("spiece.model", "unigram", {"control_symbols": ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]}),
    "big_bird": (
        "spiece.model",
        "unigram",
        {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "control_symbols": BERT},
    ),
    "deberta-v2": (
        "spm.model",
        "unigram",
        {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
        | {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"},
    ),
    "camembert": ("sentencepiece.bpe.model", "unigram", {}),
    "reformer": ("spiece.model", "bpe", {"eos_id": 1, "bos_id": -1, "pad_id": -1}),
}
JOINED = ("\u0308", "\u0323", "\u1e9b", "\u0351", "\u0300", "\r\n")
"""Several code points that are one visible character: the library normalises those as one, as in transformers."""


def trained(file, kind, rule, **options):
    written = io.BytesIO()
    options = {"vocab_size": 260, "hard_vocab_limit": False, "minloglevel": 2, **options}
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences()),
        model_writer=written,
        model_type=kind,
        normalization_rule_name=rule,
        **options,
    )
    file.write_bytes(written.getvalue())


@pytest.mark.parametrize("rule", ["nmt_nfkc", "identity"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_reads_its_file_as_transformers_does(family, rule, tmp_path):
    transformers = pytest.importorskip("transformers", reason="its tokenizers are the other side of this test")
    name, kind, options = FAMILIES[family]
    trained(tmp_path / name, kind, rule, **options)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    ours, theirs = read_tokenizer(tmp_path, family), transformers.AutoTokenizer.from_pretrained(tmp_path)
    wrong = [text for text in hard_strings() if ours.encode(text).ids != theirs(text)["input_ids"]]
    assert not wrong, [(text, ours.encode(text).tokens, theirs.tokenize(text)) for text in wrong[:3]]
    assert ours.encode("the runner", "日本語").ids == theirs("the runner", "日本語")["input_ids"]


@pytest.mark.parametrize(
    "options", [{}, {"byte_fallback": True, "vocab_size": 520}, {"user_defined_symbols": ["U.S.A."]}]
)
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_without_a_family_it_is_that_of_sentencepiece(kind, options, tmp_path):
    for rule in ("identity", "nmt_nfkc"):
        trained(tmp_path / "some.model", kind, rule, **options)
        ours, theirs = (
            sentence_pieces(tmp_path / "some.model"),
            spm.SentencePieceProcessor(str(tmp_path / "some.model")),
        )
        texts = [text for text in hard_strings() if rule == "identity" or not any(some in text for some in JOINED)]
        wrong = [text for text in texts if ours.encode(text, add_special_tokens=False).ids != theirs.encode(text)]
        assert not wrong, [(text, ours.encode(text).tokens, theirs.encode(text, out_type=str)) for text in wrong[:3]]
        assert len(texts) > 150
        assert ours.decode(ours.encode("the runner").ids) == "the runner"
