"""Poisoning attacks: what malicious clients upload in place of their own results.

FedGEMS (Cheng et al., arXiv:2110.11027), Appendix A: naive poisoning (PAF), "a little is enough"
(LIE; Baruch et al., 2019), "one far, one mean" (OFOM; Chang et al., 2019).

Run:   python fedkd_minimal.py --algo dsfl --attack paf
       (one malicious client; --attackers, --attack-scale and --attack-z change the attack)
    attack = build("paf", partial(stream, seed), num_clients=16, attackers=1, scale=10.0)
    uploads = attack_rows(attack, uploads, client_ids, rows)      # [M, n, ...], some replaced
What travels: an upload is any tensor: logits, probabilities, features, or the weights of a model.

Paper          here         note
theta_i        benign       [n, ...]: the uploads of the n clients that are not malicious; in
                            FedSDD those of an attacker's group
theta_m        returned     what a malicious client uploads
theta'         theta        the harmful vector
mu_j, sigma_j               mean and population standard deviation over the benign clients,
                            coordinate by coordinate
z^max          z            LIE's distance from the mean, in standard deviations
n, epsilon n                num_clients, num_attackers: all clients, malicious clients

Departures (more: docs/DEPARTURES.md):
  1  Eq. (7) sums over benign clients and divides by their number
  2  theta', which the paper leaves open, is scale x (standard deviation over all benign entries of
     the round) x u, u ~ N(0, 1) for each attacker, row and coordinate, the same in all rounds
  3  n counts all clients, as in Baruch's paper; Algorithm 2 calls it the number of benign updates.
     Eq. (9) divides by the number of benign clients, as Baruch does
  4  A.1 ends as if theta_m could replace the server's aggregate. Here the attacker replaces its own
     upload, and the server aggregates that with the others'
  5  Eq. (11): of OFOM's two attackers the second uploads the mean of the benign clients and the
     first
  6  what each client sends of its own samples, as in FedGKT, has no common rows: mean and deviation
     are over all benign samples
"""
import math
from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

import torch

ATTACKS = ("paf", "lie", "ofom")
HUGE = 1e30    # sums of larger numbers, or their quotients by a temperature, overflow in float32


def paf(benign, theta):
    """The mean of the benign uploads plus theta: [n, ...], [...] -> [...].      Eq. (7)"""
    return benign.mean(0) + theta                                        # departure 1


def lie(benign, z):
    """mean + z * standard deviation of the benign uploads, by coordinate: [n, ...] -> [...].

    benign    its standard deviation is sqrt(mean of (x - mean)²), with n and not n - 1
    limits    one attacker of 16 moves the mean of all uploads by z / 16 standard deviations
    source    Eq. (10); Alg. 2, line 4-5
    """
    return benign.mean(0) + z * benign.std(0, correction=0)


def ofom(benign, theta, n=None):
    """Two uploads [2, ...]: benign mean + theta, then the mean of the benign uploads and the first.

    n         benign clients, if `benign` has many samples of each (departure 6); None: as many
    source    Eq. (11)
    """
    wide = torch.promote_types(benign.dtype, torch.float32)          # sums of float16 overflow
    n = len(benign) if n is None else n
    far = benign.mean(0) + theta
    total = benign.sum(0, dtype=wide) * (n / len(benign))                # of n uploads
    mean = (total + far) / (n + 1)                                       # departure 5
    return torch.stack([far, mean.to(far.dtype)])


def lie_z(num_clients, num_attackers):
    """LIE's largest distance that stays unnoticed, in standard deviations: a float.

    s = floor(n / 2 + 1) - m benign clients make a majority together with the m attackers;
    Phi(z) = (n - m - s) / (n - m), kept between 0.001 and 0.999.
    source    Eq. (8), (9); Alg. 2, line 2-3
    >>> round(lie_z(50, 12), 3)
    0.336
    """
    supporters = math.floor(num_clients / 2 + 1) - num_attackers         # departure 3
    benign = num_clients - num_attackers
    return NormalDist().inv_cdf(min(max((benign - supporters) / benign, 0.001), 0.999))


def check(name, num_clients, attackers):
    """Raises ValueError if there is no such attack, or if the number of attackers is impossible."""
    if name not in ATTACKS:
        raise ValueError(f"unknown attack {name!r}; choose from {', '.join(ATTACKS)}")
    if not 1 <= attackers < num_clients:
        raise ValueError(f"attackers is {attackers}: from 1 to {num_clients - 1} of the "
                         f"{num_clients} clients can be malicious")
    if name == "ofom" and attackers != 2:
        raise ValueError(f"ofom has exactly 2 attackers, not {attackers}")


class Attack(NamedTuple):
    """Who is malicious, and what they upload."""

    malicious: list[int]    # sorted ids of the malicious clients
    forge: Callable         # forge(i, upload, benign, rows): what attacker i uploads in place of
    #                         upload [n, ...]; benign [m, ...] are uploads of the others, and rows
    #                         int64 [n] numbers the entries of `upload`, so that each has its own u;
    #                         num_benign: how many clients `benign` is of, if not m


def build(name, stream, num_clients, attackers, scale=10.0, z=None):
    """The `Attack` of this name.

    stream      stream(*keys) -> numpy Generator, equal for equal keys; it draws attackers and u
    scale       size of theta' in PAF and OFOM, in standard deviations
    z           distance of LIE, in standard deviations; None: `lie_z`
    raises      ValueError: see `check`
    """
    check(name, num_clients, attackers)
    malicious = sorted(stream("attackers").choice(num_clients, attackers, replace=False).tolist())
    z = lie_z(num_clients, attackers) if z is None else z

    def forge(i, upload, benign, rows, num_benign=None):
        if name == "lie":
            return lie(benign, z).expand(upload.shape).to(upload)
        source = malicious[0] if name == "ofom" else i
        shape = (int(rows.max()) + 1, *upload.shape[1:])         # a row's u depends on no other row
        u = torch.from_numpy(stream("theta", source).standard_normal(shape)).to(benign)[rows]
        theta = scale * benign.std(correction=0) * u                     # departure 2
        forged = paf(benign, theta)
        if name == "ofom":
            forged = ofom(benign, theta, num_benign)[malicious.index(i)]
        return forged.to(upload)

    return Attack(malicious, forge)


# --------------------------------------------------------------------------------------------------
# What the server receives from the clients `client_ids`: the malicious uploads are replaced

def attack_rows(attack, uploads, client_ids, rows):
    """Uploads [M, n, ...] of the same rows, int64 [n], by all clients: logits or probabilities."""
    benign = uploads[[j for j, i in enumerate(client_ids) if i not in attack.malicious]]
    benign = benign[(benign.abs() < HUGE).flatten(1).all(1)]     # usable, as in uploads.py
    if not benign.numel():
        return uploads
    return torch.stack([attack.forge(i, upload, benign, rows) if i in attack.malicious else upload
                        for i, upload in zip(client_ids, uploads)])      # departure 4


def attack_models(attack, uploads, client_ids):
    """Uploads [{"model": state_dict, ...}]: a model is a vector of its floating-point entries.

    Each entry keeps its type. One that is usable in no upload, as a mask is, is not attacked.
    """
    models = [upload["model"] for upload in uploads]
    names = [name for name, w in models[0].items()
             if isinstance(w, torch.Tensor) and w.is_floating_point()
             and any((model[name].abs() < HUGE).all() for model in models)]
    if not names:
        return uploads
    flat = torch.stack([torch.cat([model[name].flatten() for name in names]) for model in models])
    flat = attack_rows(attack, flat, client_ids, torch.arange(flat.shape[1], device=flat.device))
    attacked = []
    for vector, upload in zip(flat, uploads):                                            # [P]
        model = dict(upload["model"])
        pieces = vector.split([model[name].numel() for name in names])
        for name, piece in zip(names, pieces):
            piece = piece.view_as(model[name]).to(model[name].dtype)
            model[name] = piece.clamp(min=0) if name.endswith("running_var") else piece
        attacked.append(upload | {"model": model})
    return attacked


def attack_samples(attack, uploads, client_ids):
    """Uploads [[n_i, ...]] of each client's own samples, as in FedGKT."""
    benign = [upload[(upload.abs() < HUGE).flatten(1).all(1)]    # usable, as in uploads.py
              for upload, i in zip(uploads, client_ids) if i not in attack.malicious]
    num_benign = sum(len(upload) > 0 for upload in benign)
    benign = torch.cat(benign or [uploads[0][:0]])                       # departure 6
    if not len(benign):
        return uploads
    return [attack.forge(i, upload, benign, torch.arange(len(upload)), num_benign=num_benign)
            if i in attack.malicious else upload for i, upload in zip(client_ids, uploads)]
