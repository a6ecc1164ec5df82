"""What is measured, which way is better, and what it means, for tables and reports."""

from kinfolk.objectives.direction import HIGHER
from kinfolk.objectives.direction import higher_is_better as higher_is_better

MEANINGS = {
    "next-token": "every token of a text from all before it",
    "continuation": "every token of the second half of a window from all before it, which an encoder-decoder and a "
    "decoder can both answer",
    "target-token": "every token of the target of a pair",
    "span-token": "the tokens of spans that were taken out of a text, and the marks between them, from what is left; "
    "not a probability of the text, so it has no bits per byte",
    "masked-token": "hidden tokens from both sides; not a probability of the text, so it has no bits per byte and no "
    "place among the others",
    "bits-per-dimension": "every value of a picture that is not given, from what is given and all before it, in bits",
    "accuracy": "the share of examples whose class was the one with the highest score; more is better",
    "class": "the class of an example, in nats",
    "tag": "the tag of a token, in nats",
    "span": "the first and the last token of an answer, in nats, half of each",
    "exact-match": "the share of examples of which all was right: every class that holds, or both ends of an answer",
    "overlap": "the tokens that an answer shares with the right one, twice, over the tokens of both (F1); none found "
    "where there is none is 1",
    "macro-f1": "the mean over classes of F1, the harmonic mean of precision and recall",
    "micro-f1": "F1 of all decisions about classes together",
    "entity-f1": "F1 of whole entities, both ends and the kind right",
    "answer-f1": "the words that an answer shares with the right one, over those of both, as SQuAD counts them",
    "answer-exact": "the share of questions whose answer is one of the right ones, as SQuAD compares them",
    "mcc": "Matthews' correlation of labels and answers; 0 is guessing",
    "pearson": "the correlation of numbers and their guesses",
    "spearman": "the correlation of the ranks of numbers and their guesses",
    "bleu": "BLEU of what a model writes for the first pairs held out",
    "rouge-l": "ROUGE-L of what a model writes for the first pairs held out, the F-measure",
    "squared-error": "the square of the difference of a number and its guess",
    "absolute-error": "the difference of a number and its guess",
}


def in_nats(measure: str) -> bool:
    """Tell whether a measure is the logarithm of a probability, so that it has a perplexity."""
    return measure not in (*HIGHER, "squared-error", "absolute-error", "bits-per-dimension")


def of_tokens(measure: str) -> bool:
    """Tell whether a measure is of tokens, so that guessing costs the logarithm of the vocabulary."""
    return measure.endswith("-token") or measure == "continuation"


def called(measure: str) -> str:
    """Name a measure in a sentence."""
    return measure if higher_is_better(measure) else f"{measure} loss"
