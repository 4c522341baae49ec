"""Poisoning: what malicious clients send in place of what they would have sent, and how the server's loop is given it.

FedGEMS (Cheng et al., arXiv:2110.11027), Appendix A: naive poisoning (PAF), "a little is enough" (LIE; Baruch et al., 2019), "one
far, one mean" (OFOM; Chang et al., 2019). An upload is any tensor: logits, probabilities, features, or a model's weights.

    attack = build("paf", partial(stream, seed), num_clients=16, attackers=1, scale=10.0)
    uploads = attack(uploads, client_ids, rows, t)                # [M, ...]: only the malicious clients' own are replaced

Paper          here         note
theta_i        benign       [n, ...]: the uploads of the n clients that are not malicious
theta_m        returned     what a malicious client uploads
theta'         theta        a vector that does harm
mu_j, sigma_j               mean and population standard deviation over the benign clients, coordinate by coordinate
z_max          z            how many standard deviations LIE goes
n, epsilon n                num_clients, num_attackers: all clients, those that are malicious

Where the paper is silent or we differ:
D1  Eq. (7) sums over benign clients and divides by their number          [test_eq7_paf_by_hand]
D2  theta' is scale x (one standard deviation over all benign entries of the round) x u, u ~ N(0, 1) for each attacker, row and
    coordinate, the same in all rounds: a constant added to logits would change nothing      [test_theta_is_the_same_in_all_rounds]
D3  Eq. (9) with Baruch's denominator, the number of benign clients; the quantile is clipped to [.001, .999]   [test_eq9_lie_z]
D4  an attacker replaces its upload; the aggregate itself is not replaced      [test_only_the_attackers_uploads_change]
D5  who is malicious is drawn once, from the seed                         [test_attackers_are_drawn_once_from_the_seed]
D6  OFOM's two: the second is the mean of the benign clients and the first   [test_eq11_ofom_by_hand]
D7  benign uploads with nan or infinity are not imitated; where no benign client takes part nothing is replaced
                                                                          [test_nobody_to_imitate]
D8  weights: all floating-point entries are attacked, and a running variance stays >= 0; integer counters are left
                                                                          [test_attack_on_models_by_hand]
"""
import math
from statistics import NormalDist

import torch

ATTACKS = ("paf", "lie", "ofom")


def paf(benign, theta):
    """The mean of the benign uploads plus theta: [n, ...], [...] -> [...].                                            Eq. (7)"""
    return benign.mean(0) + theta


def lie(benign, z):
    """mean + z * standard deviation of the benign uploads, by coordinate: [n, ...] -> [...].       Eq. (10); Alg. 2, line 4-5"""
    return benign.mean(0) + z * benign.std(0, correction=0)


def ofom(benign, theta):
    """Two uploads [2, ...]: the benign mean plus theta, and the mean of the benign uploads and that one.             Eq. (11)"""
    far = benign.mean(0) + theta
    return torch.stack([far, (benign.sum(0) + far) / (len(benign) + 1)])


def lie_z(num_clients, num_attackers):
    """How far LIE may go unnoticed: a float, in standard deviations.                         Eq. (8), (9); Alg. 2, line 2-3

    s = floor(n / 2 + 1) - m benign clients make a majority with the m attackers; Phi(z) = (n - m - s) / (n - m).
    Needs `math` and `statistics.NormalDist`.
    >>> round(lie_z(50, 12), 3)
    0.336
    """
    supporters = math.floor(num_clients / 2 + 1) - num_attackers
    benign = num_clients - num_attackers
    return NormalDist().inv_cdf(min(max((benign - supporters) / benign, 0.001), 0.999))


def check(name, num_clients, attackers):
    """ValueError, in one line, if so many attackers cannot be."""
    if not 1 <= attackers < num_clients:
        raise ValueError(f"--attackers {attackers}: from 1 to {num_clients - 1} of the {num_clients} clients can be malicious")
    if name == "ofom" and attackers != 2:
        raise ValueError(f"--attack ofom has exactly 2 attackers, not {attackers}")


def build(name, stream, num_clients, attackers, scale=10.0, z=None):
    """attack(uploads [M, n, ...], client_ids, rows [n], t) -> uploads, with the malicious clients' replaced.

    stream      stream(*keys) -> a numpy Generator, the same for the same keys: says who is malicious, and draws u
    scale, z    of PAF and OFOM, in standard deviations; of LIE, None is `lie_z`
    raises      ValueError: see `check`
    """
    check(name, num_clients, attackers)
    malicious = sorted(stream("attackers").choice(num_clients, attackers, replace=False).tolist())
    z = lie_z(num_clients, attackers) if z is None else z

    def forged(i, benign, rows, row_shape):
        """What attacker i sends, from benign [n, ...]: one value per coordinate; theta' is [len(rows), *row_shape]."""
        if name == "lie":
            return lie(benign, z)
        source = malicious[0] if name == "ofom" else i
        u = torch.from_numpy(stream("theta", source).standard_normal((int(rows.max()) + 1, *row_shape)))     # [N, ...]: a row's u
        theta = scale * benign.std(correction=0) * u.to(benign)[rows]                    # does not depend on the other rows
        return paf(benign, theta) if name == "paf" else ofom(benign, theta)[malicious.index(i)]

    def attack(uploads, client_ids, rows, t):
        present = [j for j, i in enumerate(client_ids) if i in malicious]                # places of the attackers in uploads
        benign = uploads[[j for j in range(len(uploads)) if j not in present]]           # [n, ...]
        benign = benign[torch.isfinite(benign).flatten(1).all(1)]
        if not present or not benign.numel():
            return uploads
        uploads = uploads.clone()
        for j in present:
            uploads[j] = forged(client_ids[j], benign, rows, benign.shape[2:])
        return uploads

    def attack_samples(uploads, client_ids, t):
        """The same where each client sends [n_i, ...] of samples of its own: the statistics are over all benign samples."""
        benign = torch.cat([own for own, i in zip(uploads, client_ids) if i not in malicious] or [uploads[0][:0]])
        benign = benign[torch.isfinite(benign).flatten(1).all(1)]
        if not len(benign):
            return uploads
        return [forged(i, benign, torch.arange(len(own)), own.shape[1:]).expand(own.shape).to(own) if i in malicious else own
                for own, i in zip(uploads, client_ids)]

    attack.samples = attack_samples
    return attack


def attack_uploads(attack, trained, client_ids, t):
    """What `run_clients` brought, [({"model": state_dict}, ...)], after an attack on the models: as vectors of all their floats."""
    models = [upload["model"] for upload, _ in trained]
    names = [name for name, value in models[0].items() if value.is_floating_point()]
    flat = torch.stack([torch.cat([model[name].flatten() for name in names]) for model in models])       # [M, P]
    flat = attack(flat, client_ids, torch.arange(flat.shape[1], device=flat.device), t)
    attacked = []
    for vector, (upload, client) in zip(flat, trained):
        pieces = vector.split([upload["model"][name].numel() for name in names])
        floats = {name: piece.view_as(upload["model"][name]) for name, piece in zip(names, pieces)}
        floats = {name: piece.clamp(min=0) if name.endswith("running_var") else piece for name, piece in floats.items()}
        attacked.append((upload | {"model": upload["model"] | floats}, client))
    return attacked
