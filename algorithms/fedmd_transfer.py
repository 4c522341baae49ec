"""FedMD's transfer learning: a client trains on public samples, then on its own, until convergence.

Li and Wang, arXiv:1910.03581, Algorithm 1, step 0, which fedmd.py runs; fedmd_pooled.py runs the
first stage alone. What the text does not give is as in its authors' code.

What travels: nothing.
Public data: labeled, at every client.

Paper              here                         shape         note
D_0                fed.public                   [N, ...], [N] public samples and their labels
D_k                fed.private[i]               [n, ...], [n] the few private samples of client i
                   validation                   [n, ...], [n] decides when to stop
                   min_delta, patience          numbers       of accuracy; in epochs

Step 0, at each client:
 1  it trains on nine tenths of D_0 until the accuracy on the other tenth, the held-out set, has not
    grown by min_delta for 3 epochs
 2  it trains on D_k until the accuracy on the task's validation set, which no client trains on, has
    not grown by 0.001 for 10 epochs
Both stages: cross-entropy, a new optimizer, at most `epochs` passes. Without early stopping stage 1
trains on all of D_0, and both stages make all passes. The weights of the last epoch are kept, the
optimizers are not.
Modes: training is in train mode, with --augment on augmented images, and the cross-entropy is the
mean over the batch. The held-out and the validation images are predicted clean, in eval mode.
Departures (docs/DEPARTURES.md has more):
D1  the text trains "until convergence"; here a held-out set decides when to stop, in the code a
    test set
D2  all losses have the penalty kernel_l2 |W|² on the last layer's weights W, as in the code
"""
import torch
import torch.nn.functional as F
from torch import nn

from federation import pick, stream
from federation.evaluation import accuracy
from federation.training import Best, best_of, forward, predict_logits, shuffled

PUBLIC_STAGE = dict(patience=3)         # early stopping, in epochs; `run` sets its min_delta
PRIVATE_STAGE = dict(min_delta=0.001, patience=10)


def penalty(model, kernel_l2):
    """kernel_l2 times the squared norm of the last linear layer's weights: a scalar."""
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(f"the network {type(model).__name__} has no linear layer")
    return kernel_l2 * linear[-1].weight.square().sum()                                  # D2


def train_with_penalty(fed, model, optimizer, data, kernel_l2, *, epochs, batch_size, keys):
    """Trains `model` in place by cross-entropy plus the penalty; keys: of `shuffled`."""
    model.train()                        # --augment: the batches are augmented
    for rows, batch in shuffled(fed, data.images, keys, epochs=epochs, batch_size=batch_size):
        loss = F.cross_entropy(forward(fed, model, batch), data.labels[rows])
        loss = loss + penalty(model, kernel_l2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train_until_converged(fed, model, optimizer, data, validation, *, epochs, batch_size, kernel_l2,
                          keys, min_delta, patience):
    """Trains `model` in place: `train_with_penalty` with early stopping; the last weights are kept.

    It stops when the accuracy on `validation` has not grown by min_delta for `patience` epochs;
    without a validation set it makes all epochs.
    """
    best = Best()
    for epoch in range(1, epochs + 1):
        train_with_penalty(fed, model, optimizer, data, kernel_l2, epochs=1, batch_size=batch_size,
                           keys=(*keys, epoch))
        if validation is not None:
            logits = predict_logits(fed, model, validation.images)
            best = best_of(best, accuracy(logits, validation.labels), epoch, min_delta)       # D1
            if epoch - best.when >= patience:
                break


def learn_public(fed, i, *, epochs, batch_size, new_optimizer, kernel_l2, early_stopping,
                 min_delta):
    """Client i's state_dict after training on the public samples.   Alg. 1, step 0"""
    model = fed.client_model(i, init=i)
    rows = torch.from_numpy(stream(fed.seed, "transfer").permutation(len(fed.public.labels)))
    held_out = len(rows) // 10 if early_stopping else 0
    validation_rows, rows = rows.to(fed.device).tensor_split([held_out])
    train_until_converged(fed, model, new_optimizer(model.parameters()), pick(fed.public, rows),
                          pick(fed.public, validation_rows) if held_out else None,
                          epochs=epochs, batch_size=batch_size, kernel_l2=kernel_l2,
                          keys=("transfer public", i),
                          min_delta=min_delta, **PUBLIC_STAGE)
    return model.state_dict()


def learn_private(fed, i, model_state, *, epochs, batch_size, new_optimizer, kernel_l2,
                  early_stopping):
    """Client i's state_dict after training on its own samples.   Alg. 1, step 0"""
    model = fed.client_model(i)
    model.load_state_dict(model_state)
    train_until_converged(fed, model, new_optimizer(model.parameters()), fed.private[i],
                          fed.validation if early_stopping else None, epochs=epochs,
                          batch_size=batch_size, kernel_l2=kernel_l2, keys=("transfer local", i),
                          **PRIVATE_STAGE)
    return model.state_dict()
