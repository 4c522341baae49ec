"""Poisoning attacks: what malicious clients upload in place of their own results.

Cheng et al., "FedGEMS", arXiv:2110.11027, Appendix A: naive poisoning (PAF), "a little is enough"
(LIE; Baruch et al., 2019), "one far, one mean" (OFOM; Chang et al., 2019).

    python fedkd_minimal.py --algo dsfl --attack paf
        one malicious client; --attackers, --attack-scale and --attack-z change the attack
    attack = build("paf", fed.rng, num_clients=len(fed.private), attackers=1)
    for metrics, state in dsfl.run(fed, dsfl.Config(), attack=attack): ...

An upload is any tensor: logits, probabilities, features, or the weights of a model. In each round
attackers know the uploads of the clients that take part and are not malicious; in FedSDD, of those
in their group. An upload with nan, infinity, or a number of 1e30 or more is left out as a whole,
also in FedGEMS, whose server leaves out single images of a client.

Paper          here         meaning
theta_i        benign       [n, ...]: those uploads
theta_m        returned     what a malicious client uploads
theta'         theta        the harmful vector
mu_j, sigma_j               mean and population standard deviation over the benign clients, by entry
z^max          z            LIE's distance from the mean, in standard deviations
n, epsilon n                num_clients, num_attackers: all clients, malicious clients

Departures; docs/DEPARTURES.md has more
  1  Paper, Eq. (7): sums over n, and divides by (1 - epsilon) n. Here: both are of `benign`.
  2  Paper: leaves theta' open. Here: scale x (standard deviation over all benign entries of the
     round) x u, with u from N(0, 1) for each attacker, row and entry, the same in all rounds.
  3  Paper, Algorithm 2: n is the number of benign updates. Here, as in Baruch et al.: of all
     clients, and Eq. (9) divides by the number of benign ones.
  4  Paper, A.1: as if theta_m replaced the server's aggregate. Here: it replaces one upload.
  5  Paper, Eq. (11): one opponent adds two updates. Here: two attackers, the second has the mean.
  6  Paper: silent on uploads of a client's own samples, as in FedGKT. Here: mean and deviation are
     over all benign samples.
"""
import math
from collections.abc import Callable
from numbers import Integral
from statistics import NormalDist
from typing import NamedTuple

import torch

from federation import is_usable

ATTACKS = ("paf", "lie", "ofom")


def paf(benign, theta):
    """The mean of the benign uploads plus theta: [n, ...], [...] -> [...].      Eq. (7)"""
    return benign.mean(0) + theta                                        # departure 1


def lie(benign, z):
    """mean + z * standard deviation of the benign uploads, by coordinate: [n, ...] -> [...].

    benign    its standard deviation is sqrt(mean of (x - mean)²), with n and not n - 1
    z         0 gives the mean, which does no harm; below 0 the other side of it
    limits    one attacker of 16 moves the mean of all uploads by z / 16 standard deviations
    source    Eq. (10); Alg. 2, line 4-5
    """
    return benign.mean(0) + z * benign.std(0, correction=0)


def harmful_vector(benign, u, scale):
    """theta' of PAF and OFOM, scale x the standard deviation of all benign entries x u: as u.

    benign    [n, ...]; the deviation is one number, with the count of entries and not count - 1
    u         [...], drawn from N(0, 1)
    """
    return scale * benign.std(correction=0) * u                          # departure 2


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
    Phi(z) = (n - m - s) / (n - m), kept between 0.001 and 0.999. z is 0 with two attackers of an
    even number of clients and with one of an odd number, who then upload the mean and do no harm;
    it is below 0 with one of an even number.
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
    """Who is malicious, and what they upload. What the server then receives from the clients,
    {number of a client: upload}, comes from the method for this kind of upload. It raises
    ValueError if the keys are no numbers, among which nobody would be malicious."""

    malicious: list[int]    # sorted numbers of the malicious clients
    forge: Callable         # forge(i, upload, benign, rows): what attacker i uploads in place of
    #                         upload [n, ...]; benign [m, ...] are uploads of the others, and rows
    #                         int64 [n] numbers the entries of `upload`, so that each has its own u;
    #                         num_benign: how many clients `benign` is of, if not m; part: what
    #                         else names u

    def poison_rows(self, uploads, rows):
        """Uploads [n, ...] of the same rows, int64 [n], by all: logits or probabilities."""
        benign = self.known(uploads)
        if not benign or not len(rows):
            return uploads
        benign = torch.stack(benign)
        return uploads | {i: self.forge(i, uploads[i], benign, rows)
                          for i in uploads if i in self.malicious}       # departure 4

    def poison_weights(self, uploads):
        """Uploads {name: tensor}: a model is a vector of its floating-point entries."""
        names = [name for name, w in next(iter(uploads.values())).items() if w.is_floating_point()]
        flat = {i: torch.cat([upload[name].flatten() for name in names])
                for i, upload in uploads.items()}                                        # {i: [P]}
        some = next(iter(flat.values()))
        flat = self.poison_rows(flat, torch.arange(len(some), device=some.device))
        return uploads | {i: uploads[i] | unflatten(flat[i], uploads[i], names)
                          for i in uploads if i in self.malicious}

    def poison_samples(self, uploads):
        """Uploads, NamedTuples of tensors [n_i, ...] of each client's own samples, as in FedGKT.

        Each part of floating-point numbers is replaced by the statistics of its own kind, with u of
        its own.
        """
        benign = self.known(uploads)
        if not benign:
            return uploads

        def forge(i, k, own):
            if not own.is_floating_point():
                return own
            samples = torch.cat([upload[k] for upload in benign])        # departure 6
            rows = torch.arange(len(own), device=own.device)
            return self.forge(i, own, samples, rows, num_benign=len(benign), part=(k,))

        return uploads | {i: uploads[i]._make(forge(i, k, own) for k, own in enumerate(uploads[i]))
                          for i in uploads if i in self.malicious}

    def known(self, uploads):
        """The usable uploads of clients that are not malicious."""
        if not all(isinstance(i, Integral) for i in uploads):
            raise ValueError(f"uploads are {{number of a client: upload}}, not of {[*uploads]}")
        return [upload for i, upload in uploads.items()
                if i not in self.malicious and is_usable(upload)]


def unflatten(vector, model, names):
    """{name: tensor} of a vector of these entries of a model; a variance is not negative."""
    pieces = vector.split([model[name].numel() for name in names])
    made = {name: piece.view_as(model[name]) for name, piece in zip(names, pieces)}
    return {name: w.clamp(min=0) if name.endswith("running_var") else w for name, w in made.items()}


def build(name, make_rng, num_clients, attackers, scale=10.0, z=None):
    """The `Attack` of this name.

    make_rng    make_rng(*name) -> numpy Generator, as `fed.rng`; it draws attackers and u
    scale       size of theta' in PAF and OFOM, in standard deviations
    z           distance of LIE, in standard deviations; None: `lie_z`, which is 0, so that LIE does
                no harm, with two attackers of an even number of clients and one of an odd number
    raises      ValueError: see `check`
    """
    check(name, num_clients, attackers)
    malicious = sorted(make_rng("attackers").choice(num_clients, attackers, replace=False).tolist())
    z = lie_z(num_clients, attackers) if z is None else z

    def forge(i, upload, benign, rows, num_benign=None, part=()):
        if name == "lie":
            return lie(benign, z).expand(upload.shape).to(upload)
        source = malicious[0] if name == "ofom" else i
        shape = (int(rows.max()) + 1, *upload.shape[1:])         # a row's u depends on no other row
        rng = make_rng("theta", source, *part)
        u = torch.from_numpy(rng.standard_normal(shape)).to(benign)[rows]
        theta = harmful_vector(benign, u, scale)
        forged = paf(benign, theta)
        if name == "ofom":
            forged = ofom(benign, theta, num_benign)[malicious.index(i)]
        return forged.to(upload)

    return Attack(malicious, forge)
