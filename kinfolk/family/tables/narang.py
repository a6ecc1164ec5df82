"""Narang et al. 2021, Do Transformer Modifications Transfer Across Implementations and Applications?, table 1.

Figures are the paper's for its base size: parameters, operations, steps per second, the loss after an eighth of the
steps (mean and standard deviation of five seeds) and after all. Where its print cannot be read for sure, None.
"""

from collections.abc import Iterator

from kinfolk.family.branched import with_branches
from kinfolk.family.t5 import text_to_text
from kinfolk.family.tables import Change, Published, Table, TableRow, slug
from kinfolk.family.tables.narang_changes import (
    activation,
    adaptive,
    both,
    convolution,
    deep,
    embeddings,
    evolved,
    experts,
    factorised,
    fixup,
    funnel,
    gated,
    mixture,
    normed,
    of_model,
    product_key,
    rezero,
    same,
    sharing,
    synthesizer,
    transparent,
    universal,
)
from kinfolk.layers.feed_forwards.experts import Switch, Top2
from kinfolk.layers.mixers.convolution import DynamicConv, LightConv
from kinfolk.layers.norms.norm import LayerNorm, RMSNorm

PART = RMSNorm(part=0.0675)
"""Their RMSNorm looks at this share of the channels."""

CUT = "clusters are cut by id: rare words are the last ids of a learnt vocabulary, but not of bytes"
MADE_UP = "their parameters are not explained by what they published"

FIGURES = """
    Vanilla Transformer                         223   11.1   3.50  2.182  0.005  1.838
    GeLU                                        223   11.1   3.58  2.179  0.003  1.838
    Swish                                       223   11.1   3.62  2.186  0.003  1.847
    ELU                                         223   11.1   3.56  2.270  0.007  1.932
    GLU                                         223   11.1   3.59  2.174  0.003  1.814
    GeGLU                                       223   11.1   3.55  2.130  0.006  1.792
    ReGLU                                       223   11.1   3.57  2.145  0.004  1.803
    SeLU                                        223   11.1   3.55  2.315  0.004  1.948
    SwiGLU                                      223   11.1   3.53  2.127  0.003  1.789
    LiGLU                                       223   11.1   3.59  2.149  0.005  1.798
    Sigmoid                                     223   11.1   3.63  2.291  0.019  1.867
    Softplus                                    223   11.1   3.47  2.207  0.011  1.850
    RMS Norm                                    223   11.1   3.68  2.167  0.008  1.821
    Rezero                                      223   11.1   3.51  2.262  0.003  1.939
    Rezero + LayerNorm                          223   11.1   3.26  2.223  0.006  1.858
    Rezero + RMS Norm                           223   11.1   3.34  2.221  0.009  1.875
    Fixup                                       223   11.1   2.95  2.382  0.012  2.067
    24 layers, d_ff = 1536, H = 6               224   11.1   3.33  2.200  0.007  1.843
    18 layers, d_ff = 2048, H = 8               223   11.1   3.38  2.185  0.005  1.831
    8 layers, d_ff = 4608, H = 18               223   11.1   3.69  2.190  0.005  1.847
    6 layers, d_ff = 6144, H = 24               223   11.1   3.70  2.201  0.010  1.857
    Block sharing                                65   11.1   3.91  2.497  0.037  2.164
    + Factorized embeddings                      45    9.4   4.21  2.631  0.305  2.183
    + Factorized & shared embeddings             20    9.1   4.31  2.907  0.313      -
    Encoder only block sharing                  170   11.1   3.68  2.298  0.023  1.929
    Decoder only block sharing                  144   11.1   3.70  2.352  0.029  2.082
    Factorized Embedding                        227    9.4   3.80  2.208  0.006  1.855
    Factorized & shared embeddings              202    9.1   3.92  2.320  0.010  1.952
    Tied encoder/decoder input embeddings       248   11.1   3.55  2.192  0.002  1.840
    Tied decoder input and output embeddings    248   11.1   3.57  2.187  0.007  1.827
    Untied embeddings                           273   11.1   3.53  2.195  0.005  1.834
    Adaptive input embeddings                   204    9.2   3.55  2.250  0.002  1.899
    Adaptive softmax                            204    9.2   3.60  2.364  0.005  1.982
    Adaptive softmax without projection         223   10.8   3.43  2.229  0.009  1.914
    Mixture of softmaxes                        232   16.3   2.24  2.227  0.017  1.821
    Transparent attention                       223   11.1   3.33  2.181  0.014  1.874
    Dynamic convolution                         257   11.8   2.65  2.403  0.009  2.047
    Lightweight convolution                     224   10.4   4.07  2.370  0.010  1.989
    Evolved Transformer                         217    9.9   3.09  2.220  0.003  1.863
    Synthesizer (dense)                         224   11.4   3.47  2.334  0.021  1.962
    Synthesizer (dense plus)                    243   12.6   3.22  2.191  0.010  1.840
    Synthesizer (dense plus alpha)              243   12.6   3.01  2.180  0.007  1.828
    Synthesizer (factorized)                    207   10.1   3.94  2.341  0.017  1.968
    Synthesizer (random)                        254   10.1   4.08  2.326  0.012  2.009
    Synthesizer (random plus)                   292   12.0   3.63  2.189  0.004  1.842
    Synthesizer (random plus alpha)             292   12.0   3.42  2.186  0.007  1.828
    Universal Transformer                        84   40.0   0.88  2.406  0.036  2.053
    Mixture of experts                          648   11.7   3.20  2.148  0.006  1.785
    Switch Transformer                         1100   11.7   3.18  2.135      -  1.758
    Funnel Transformer                          223    1.9   4.30  2.288  0.007  1.918
    Weighted Transformer                        280   71.0   0.59  2.378  0.003  1.989
    Product key memory                          421  386.6   0.25  2.155  0.003  1.798
"""
"""Name, million parameters, trillion operations, steps per second, early loss, its spread, final loss."""

CHANGES: tuple[tuple[str, Change], ...] = (
    ("an encoder-decoder that fills in spans: pre-norm, ReLU, biases of distance", same),
    ("feed-forwards with GELU", activation("gelu-tanh")),
    ("feed-forwards with Swish", activation("swish")),
    ("feed-forwards with ELU", activation("elu")),
    ("feed-forwards gated by a sigmoid", gated("sigmoid")),
    ("feed-forwards gated by GELU", gated("gelu-tanh")),
    ("feed-forwards gated by ReLU", gated("relu")),
    ("feed-forwards with SELU", activation("selu")),
    ("feed-forwards gated by Swish", gated("swish")),
    ("feed-forwards of two factors", gated("identity")),
    ("feed-forwards with a sigmoid", activation("sigmoid")),
    ("feed-forwards with softplus", activation("softplus")),
    ("norms by the mean square of a few channels", normed(PART)),
    ("no norms; branches start at zero", rezero()),
    ("branches start at zero, norms stay", rezero(LayerNorm())),
    ("branches start at zero, with norms by the mean square", rezero(PART)),
    ("no norms; weights start small with depth", fixup),
    ("twice the layers, half as wide", deep(24)),
    ("half as many layers again, narrower", deep(18)),
    ("two thirds of the layers, wider", deep(8)),
    ("half the layers, twice as wide", deep(6)),
    ("all layers of a stack share their weights", sharing("encoder", "decoder")),
    ("block sharing, and embeddings of two factors", both(sharing("encoder", "decoder"), factorised("untied"))),
    (
        "block sharing, and embeddings of two factors that the output shares",
        both(sharing("encoder", "decoder"), factorised("tied")),
    ),
    ("the encoder's layers share their weights", sharing("encoder")),
    ("the decoder's layers share their weights", sharing("decoder")),
    ("embeddings of two factors", factorised("untied")),
    ("embeddings of two factors that the output shares", factorised("tied")),
    ("an output layer of its own", embeddings("tied", "untied")),
    ("the encoder has embeddings of its own", embeddings("apart", "tied")),
    ("encoder, decoder and output each have their own", embeddings("apart", "untied")),
    ("rare words have narrower embeddings", adaptive(inputs=True, softmax=False)),
    ("rare words have narrower embeddings and are predicted in two steps", adaptive(inputs=True, softmax=True)),
    ("rare words are predicted in two steps", adaptive(inputs=False, softmax=True)),
    ("fifteen softmaxes are mixed", mixture(15)),
    ("decoder layers look at mixtures of all encoder layers", of_model(transparent)),
    ("convolutions with kernels of each position's own instead of self-attention", convolution(DynamicConv)),
    ("convolutions with a few normalised kernels instead of self-attention", convolution(LightConv)),
    ("the cells that a search found", of_model(evolved)),
    ("each token makes up its row of scores", synthesizer("dense")),
    ("scores that each token makes up, and comparison", synthesizer("dense-plus")),
    ("scores that each token makes up, and comparison, weighed", synthesizer("dense-plus-alpha")),
    ("a learned table of scores, of low rank", synthesizer("factorized")),
    ("a learned table of scores", synthesizer("random")),
    ("a learned table of scores, and comparison", synthesizer("random-plus")),
    ("a learned table of scores, and comparison, weighed", synthesizer("random-plus-alpha")),
    ("one gated block again and again, told its steps, with an output layer of its own", of_model(universal)),
    ("every fourth feed-forward has 32 experts, two for a token", experts(Top2(), 2.0)),
    ("every fourth feed-forward has 32 experts, one for a token", experts(Switch(), 1.2)),
    ("the encoder pools its sequence twice", of_model(funnel)),
    ("heads are branches with learned weights", of_model(with_branches)),
    ("one feed-forward of the decoder is a large memory", of_model(product_key)),
)
"""What each row changes, in the order of the table."""

KEYS = {
    "Vanilla Transformer": "vanilla",
    "24 layers, d_ff = 1536, H = 6": "24-layers",
    "18 layers, d_ff = 2048, H = 8": "18-layers",
    "8 layers, d_ff = 4608, H = 18": "8-layers",
    "6 layers, d_ff = 6144, H = 24": "6-layers",
    "+ Factorized embeddings": "block-sharing-factorized",
    "+ Factorized & shared embeddings": "block-sharing-factorized-shared",
    "Evolved Transformer": "evolved",
    "Universal Transformer": "universal",
    "Mixture of experts": "moe",
    "Switch Transformer": "switch",
    "Funnel Transformer": "funnel",
    "Weighted Transformer": "weighted",
}
"""Names of rows on a command line, where they are not the printed ones."""

DIFFERS = {
    "Adaptive input embeddings": CUT,
    "Adaptive softmax": CUT,
    "Adaptive softmax without projection": CUT,
    "Transparent attention": "the norm that closes the encoder closes every layer's states before they are mixed; "
    "theirs are raw",
    "Dynamic convolution": "as in the paper of dynamic convolutions; theirs predict nine whole matrices for every "
    "position and have narrower feed-forwards",
    "Lightweight convolution": "as in the paper of lightweight convolutions; theirs have another map, and a kernel "
    "for every channel",
    "Evolved Transformer": "the two attentions side by side have no position biases",
    "Synthesizer (dense)": MADE_UP,
    "Synthesizer (dense plus)": MADE_UP,
    "Synthesizer (dense plus alpha)": MADE_UP,
    "Synthesizer (factorized)": MADE_UP,
    "Synthesizer (random)": MADE_UP,
    "Synthesizer (random plus)": MADE_UP,
    "Synthesizer (random plus alpha)": MADE_UP,
    "Universal Transformer": "the gates of GTrXL in the place of theirs, which have norms inside",
    "Funnel Transformer": "each level has biases of distance of its own; LayerNorm as in all rows, where theirs have "
    "RMSNorm",
    "Weighted Transformer": "shares add up to one by a softmax; theirs are projected after every step",
}
"""How what is run here is not what was run there, where more than the size is another."""


def _rows() -> Iterator[TableRow]:
    for line, (words, change) in zip(FIGURES.strip().splitlines(), CHANGES, strict=True):
        *name, params, ops, speed, early, spread, final = line.split()
        numbers = (None if text == "-" else float(text) for text in (params, ops, speed, early, spread, final))
        title = " ".join(name)
        yield TableRow(
            name=title,
            key=KEYS.get(title) or slug(title),
            published=Published(*numbers),
            changes=words,
            change=change,
            differs=DIFFERS.get(title, ""),
        )


TABLE = Table(
    name="narang",
    title="Do Transformer modifications transfer?",
    paper="Narang et al. 2021, Do Transformer Modifications Transfer Across Implementations and Applications?, "
    "arXiv:2102.11972",
    year=2021,
    baseline=text_to_text,
    rows=tuple(_rows()),
)
