"""Variable regions of antibodies that are medicines, and AntiBERTy to guess their residues.

The sequences are public (International Nonproprietary Names, World Health Organization) and were compared with other
published copies, of the chains of PDB entries 1N8Z, 3WD5, 2OSL and 1YY9 among them. The model comes from PyPI,
`pip install --no-deps --only-binary :all: antiberty==0.1.3` (MIT, weights inside), and is read without importing the
package.
"""

from __future__ import annotations

import hashlib
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers

PACKAGE = "antiberty"
SHA256 = "f1ae33eac8cc8784"  # how that of the weights starts
INSTALL = "pip install --no-deps --only-binary :all: antiberty==0.1.3"
APART = 6  # one residue in six is hidden at a time, about as many as in its training

# Heavy and light chain of each, the light ones all kappa.
ANTIBODIES = {
    "trastuzumab": (
        "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS",
        "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTFGQGTKVEIK",
    ),
    "adalimumab": (
        "EVQLVESGGGLVQPGRSLRLSCAASGFTFDDYAMHWVRQAPGKGLEWVSAITWNSGHIDYADSVEGRFTISRDNAKNSLYLQMNSLRAEDTAVYYCAKVSYLSTASSLDYWGQGTLVTVSS",
        "DIQMTQSPSSLSASVGDRVTITCRASQGIRNYLAWYQQKPGKAPKLLIYAASTLQSGVPSRFSGSGSGTDFTLTISSLQPEDVATYYCQRYNRAPYTFGQGTKVEIK",
    ),
    "nivolumab": (
        "QVQLVESGGGVVQPGRSLRLDCKASGITFSNSGMHWVRQAPGKGLEWVAVIWYDGSKRYYADSVKGRFTISRDNSKNTLFLQMNSLRAEDTAVYYCATNDDYWGQGTLVTVSS",
        "EIVLTQSPATLSLSPGERATLSCRASQSVSSYLAWYQQKPGQAPRLLIYDASNRATGIPARFSGSGSGTDFTLTISSLEPEDFAVYYCQQSSNWPRTFGQGTKVEIK",
    ),
    "rituximab": (
        "QVQLQQPGAELVKPGASVKMSCKASGYTFTSYNMHWVKQTPGRGLEWIGAIYPGNGDTSYNQKFKGKATLTADKSSSTAYMQLSSLTSEDSAVYYCARSTYYGGDWYFNVWGAGTTVTVSA",
        "QIVLSQSPAILSASPGEKVTMTCRASSSVSYIHWFQQKPGSSPKPWIYATSNLASGVPVRFSGSGSGTSYSLTISRVEAEDAATYYCQQWTSNPPTFGGGTKLEIK",
    ),
    "cetuximab": (
        "QVQLKQSGPGLVQPSQSLSITCTVSGFSLTNYGVHWVRQSPGKGLEWLGVIWSGGNTDYNTPFTSRLSINKDNSKSQVFFKMNSLQSNDTAIYYCARALTYYDYEFAYWGQGTLVTVSA",
        "DILLTQSPVILSVSPGERVSFSCRASQSIGTNIHWYQQRTNGSPRLLIKYASESISGIPSRFSGSGSGTDFTLSINSVESEDIADYYCQQNNNWPTTFGAGTKLELK",
    ),
}


def load() -> Any:
    """AntiBERTy's encoder with its head for hidden residues; the rest of its heads is left out."""
    found = find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        print(f"AntiBERTy is not installed: {INSTALL}", file=sys.stderr)
        raise SystemExit(2)
    folder = Path(next(iter(found.submodule_search_locations))) / "trained_models" / "AntiBERTy_md_smooth"
    weights = folder / "pytorch_model.bin"
    if not hashlib.sha256(weights.read_bytes()).hexdigest().startswith(SHA256):
        print(f"{weights} is not the file that this was written for", file=sys.stderr)
        raise SystemExit(2)
    model = transformers.BertForMaskedLM(transformers.BertConfig.from_pretrained(folder))
    stored = torch.load(weights, weights_only=True, map_location="cpu")
    wanted = model.state_dict()
    missing = model.load_state_dict(
        {name: stored[name] for name in wanted if name in stored}, strict=False
    ).missing_keys
    if missing:
        print(f"weights that AntiBERTy lacks: {missing}", file=sys.stderr)
        raise SystemExit(2)
    return model.eval().requires_grad_(requires_grad=False)


def vocabulary() -> dict[str, int]:
    """The number of each token."""
    found = find_spec(PACKAGE)
    assert found is not None
    folder = Path(next(iter(found.submodule_search_locations or ()))) / "trained_models"
    return {word: number for number, word in enumerate((folder / "vocab.txt").read_text().split())}


def hidden(sequence: str, words: dict[str, int]) -> dict[str, torch.Tensor]:
    """A batch of a sequence: in row r the residues r, r + APART, r + 2 APART ... are hidden and to be guessed."""
    ids = torch.tensor([words["[CLS]"], *(words[residue] for residue in sequence), words["[SEP]"]])
    rows, labels = ids.repeat(APART, 1), torch.full((APART, len(ids)), -100)
    for row in range(APART):
        at = slice(1 + row, len(ids) - 1, APART)
        labels[row, at] = ids[at]
        rows[row, at] = words["[MASK]"]
    return {"input_ids": rows, "labels": labels}


def wrong(outputs: Any, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, float]:
    """The share of hidden residues that are guessed wrong, and how many there are."""
    asked = batch["labels"] != -100
    return (outputs.logits.argmax(-1) != batch["labels"])[asked].double().mean(), int(asked.sum())
