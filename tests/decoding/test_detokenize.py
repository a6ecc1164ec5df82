"""Incremental detokenising: whole characters only, and nothing of a stop string."""

from kinfolk.data import Tokenizer
from kinfolk.decoding.detokenize import Text


def test_text_waits_for_whole_characters_and_for_stops():
    tokenizer = Tokenizer.byte()
    whole = "naïve 😀 END of it"
    ids = tokenizer.encode(whole)
    text, found = Text(tokenizer.decode, ["END", "xx"], ids[:2]), []
    for i in ids[2:]:
        found.append(text.add(i))
        if text.stopped:
            break
    assert "".join(found) == "ïve 😀 "
    assert "\ufffd" not in "".join(found)
    assert text.length == len("ïve 😀 ")
    # what might have become a stop comes at the end
    text = Text(tokenizer.decode, ["END"])
    assert "".join(text.add(i) for i in tokenizer.encode("the EN")) == "the "
    assert text.close() == "EN"
    broken = Text(tokenizer.decode)
    assert broken.add(tokenizer.encode("ï")[0]) == ""
    assert broken.close() == "\ufffd"


def test_a_stop_may_begin_inside_what_looked_like_another():
    tokenizer = Tokenizer.byte()
    text = Text(tokenizer.decode, ["aab"])
    found = "".join(text.add(i) for i in tokenizer.encode("xaaab"))
    assert (found, text.stopped) == ("xa", True)
