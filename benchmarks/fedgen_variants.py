"""FedGen's gain with what its public code does otherwise, one difference at a time.

    python benchmarks/fedgen_variants.py DATASET [SEED]     DATASET: mnist, or MNIST as an .npz file

    none      `fedkd_minimal.py --algo fedgen --paper fedgen`
    noise     the generator's noise is from U[0, 1)
    labels    all labels are equally likely, at the clients and on the server
    first     no generated features in round 1
    eq4       Eq. (4) is the sum over the clients of their cross-entropies, each weighed by the
              client's share of the samples with the label
20 minutes on one core.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import torch
import torch.nn.functional as F

from algorithms import fedgen
from benchmarks.commands import federation_of

ORIGINAL = {name: getattr(fedgen, name)
            for name in ("draw_features", "generator_loss", "train_client", "train_generator")}


def draw_from_unit_interval(fed, generator, label_shares, count, rng):
    """`draw_features` with noise from U[0, 1)."""
    labels = torch.from_numpy(rng.choice(fed.num_classes, count, p=label_shares))
    noise = torch.from_numpy(rng.random((count, fedgen.NOISE))).float()
    return labels, noise, generator(torch.cat([noise, F.one_hot(labels, fed.num_classes)], dim=1))


def draw_all_labels(fed, generator, label_shares, count, rng):
    """`draw_features` for labels that are all equally likely."""
    equal = [1 / fed.num_classes] * fed.num_classes
    return ORIGINAL["draw_features"](fed, generator, equal, count, rng)


def train_client_without_round_1(fed, i, t, server, *, generated, **settings):
    """`train_client`, from round 2 on with generated features."""
    return ORIGINAL["train_client"](fed, i, t, server, generated=generated if t > 1 else 0,
                                    **settings)


def train_generator_by_shares(fed, t, server, uploads, **settings):
    """`train_generator` with the code's Eq. (4)."""
    counts = torch.stack([upload["label_counts"] for upload in uploads.values()])        # [M, C]
    shares = counts / counts.sum(0).clamp(min=1)

    def loss(client_logits, labels):                                         # [M, B, C], [B]
        ce = torch.stack([F.cross_entropy(logits, labels, reduction="none")
                          for logits in client_logits])                                  # [M, B]
        return (shares[:, labels] * ce).sum(0).mean()

    fedgen.generator_loss = loss
    return ORIGINAL["train_generator"](fed, t, server, uploads, **settings)


REPLACED = {"none": {}, "noise": {"draw_features": draw_from_unit_interval},
            "labels": {"draw_features": draw_all_labels},
            "first": {"train_client": train_client_without_round_1},
            "eq4": {"train_generator": train_generator_by_shares}}


def accuracies(dataset, seed, variant):
    """Yields (round, test accuracy) every 50 rounds."""
    for name, function in {**ORIGINAL, **REPLACED[variant]}.items():
        setattr(fedgen, name, function)
    fed, settings = federation_of(["--algo", "fedgen", "--paper", "fedgen", "--dataset", dataset],
                                  seed)
    for metrics, state in fedgen.run(fed, **settings["fedgen"]):
        if state["round"] and state["round"] % 50 == 0:
            yield state["round"], metrics["accuracy"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    print(f"FedGen, seed {seed}, test accuracy in %")
    for variant in REPLACED:
        found = [f"round {t} {100 * x:.2f}" for t, x in accuracies(sys.argv[1], seed, variant)]
        print(f"{variant:8}", *found, sep="  ", flush=True)
