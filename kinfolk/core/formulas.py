"""Formulas of docstrings, written in LaTeX between dollars, as plain text for a terminal."""

import re

_SIGNS = {
    "cdot": "·", "odot": "⊙", "top": "ᵀ", "leftarrow": "←", "approx": "≈", "pm": "±", "in": "∈", "circ": "∘",
    "sum": "Σ", "lVert": "‖", "rVert": "‖", "mid": "|", "dots": "…", "big": "",
    "alpha": "α", "beta": "β", "gamma": "γ", "epsilon": "ε", "eta": "η", "kappa": "κ", "lambda": "λ", "mu": "μ",  # noqa: RUF001
    "xi": "ξ", "pi": "π", "sigma": "σ", "tau": "τ", "phi": "φ",  # noqa: RUF001
}  # fmt: skip
_POWERS = str.maketrans("0123456789-T", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻ᵀ")


def readable(text: str) -> str:
    """Return a text whose formulas between dollars are plain text."""
    return re.sub(r"\$([^$]+)\$", lambda match: formula(match[1]), text)


def formula(latex: str) -> str:
    r"""Write a formula without LaTeX: `\sqrt{\sigma^2 + \epsilon}` becomes √(σ² + ε)."""
    text = latex
    for _ in range(text.count("{")):  # from the inside out
        text = re.sub(r"\\(?:mathrm|mathbb|text){([^{}]*)}", r"\1", text)
        text = re.sub(r"\\sqrt{([^{}]*)}", lambda m: f"√{m[1]}" if len(m[1]) == 1 else f"√({m[1]})", text)
        text = re.sub(r"\\frac{([^{}]*)}{([^{}]*)}", r"(\1)/(\2)", text)
    text = re.sub(r"\\hat(?:{(\w)}| (\w))", lambda m: f"{m[1] or m[2]}\u0302", text)
    text = re.sub(r"\\([a-zA-Z]+)", lambda m: _SIGNS.get(m[1], m[1]), text)
    text = re.sub(r"\\[,; ]", " ", text).replace("\\|", "‖").replace("\\{", "{").replace("\\}", "}")
    text = re.sub(r"\^(?:{(-?\d+)}|(\d))", lambda m: (m[1] or m[2]).translate(_POWERS), text)
    return re.sub(r" {2,}", " ", text.replace("^ᵀ", "ᵀ")).strip()
