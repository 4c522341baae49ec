"""Start here: FedMD's Algorithm 1 (arXiv:1910.03581), one sample at a time.

algorithms/fedmd.py computes the same with tensors; the tests compare it with this page. The paper
does not number its steps; the numbers on the right are those of algorithms/fedmd.py. Images x,
logits z and networks are lists of numbers, as linear.py describes them.

Differs from the printed algorithm:
- Step 0 is not here: each client trains until convergence on the labeled public samples, then on
  its own, both times with cross-entropy and the penalty below.
- Step 4 is towards the consensus of raw logits, by the mean absolute error; the text has no loss.
- All losses have a penalty on the last layer's weights, as the authors' code has.
"""
from reference.linear import added, average, cross_entropy_slope, gradient, logits, scaled


def digest_slope(z, consensus):
    """The derivative by z of the mean over the classes of |z - consensus|: a sign over C."""
    return [((a > b) - (a < b)) / len(z) for a, b in zip(z, consensus)]


def learn(network, images, batches, slope, update, kernel_l2):
    """The network after a step on each batch, by the mean of the samples' losses and
    kernel_l2 times the sum of the squared weights of the last layer."""
    for rows in batches:
        g = gradient(network, images, rows, slope)
        g[-2] = added(g[-2], scaled(2 * kernel_l2, network[-2]))
        network = update(network, g)
    return network


def run(clients, public, private, *, subsets, batches, updates, weights, kernel_l2):
    """Yields (the clients after the digest, the clients after the revisit) of each round.

    clients               the networks after step 0, one for each client
    public, private[k]    the public images; of client k lists of (x, label)
    subsets               for each round the positions of its public images
    batches(step, t, k)   positions; for step "digest" in the subset, for "revisit" in private[k]
    updates[step][k]      its optimizer, update(w, gradient) -> w, for example linear.sgd(lr)
    weights               c_k, one for each client
    kernel_l2             weight of the penalty
    """
    for t, rows in enumerate(subsets, start=1):
        subset = [public[n] for n in rows]                                   # step 1
        sent = [[logits(w, x) for x in subset] for w in clients]             # step 2
        consensus = average(sent, weights)                                   # step 3
        digested = [learn(w, subset, batches("digest", t, k),                # step 4
                          lambda n, z: digest_slope(z, consensus[n]), updates["digest"][k],
                          kernel_l2) for k, w in enumerate(clients)]
        clients = [learn(w, [x for x, _ in private[k]], batches("revisit", t, k),  # step 5
                         lambda n, z: cross_entropy_slope(z, private[k][n][1]),
                         updates["revisit"][k], kernel_l2) for k, w in enumerate(digested)]
        yield digested, clients
