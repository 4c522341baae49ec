"""FedMD's transfer learning: a client trains on public images, then on its own, until convergence.

Li and Wang, arXiv:1910.03581, Algorithm 1, step 0, of fedmd.py; what the text does not give is as
in its authors' code. fedmd_pooled.py takes the first stage alone.

Data:   each client: the labeled public images, a few labeled images of its own. The task's
        validation images, which no client trains on, decide when the second stage stops
Sent:   nothing

Step 0, at each client:
 1  it trains on nine tenths of the public images until the accuracy on the other tenth, which
    all clients hold out, has not grown by min_delta for 3 epochs
 2  it trains on its own images until the accuracy on the validation images has not grown by 0.001
    for 10 epochs
Both stages: cross-entropy and the penalty below, a new optimizer, at most `epochs` passes. Without
early stopping stage 1 trains on all public images, and both stages make all passes.

D1  the text trains "until convergence"; here a held-out set decides when to stop, in the code a
    test set
D2  all losses have the penalty kernel_l2 |W|² on the last layer's weights W, as in the code
"""
import torch
import torch.nn.functional as F
from torch import nn

from federation import pick, stream
from federation.evaluation import accuracy
from federation.parallel import in_parallel
from federation.training import OPTIMIZERS, Best, best_of, forward, predict_logits, shuffled

PUBLIC_PATIENCE = 3            # epochs without growth after which the first stage stops
PRIVATE_PATIENCE = 10          # and the second one
PRIVATE_MIN_DELTA = 0.001      # of accuracy: a smaller gain is no growth


def penalty(model, kernel_l2):
    """kernel_l2 times the squared norm of the last linear layer's weights: a scalar."""
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(f"the network {type(model).__name__} has no linear layer")
    return kernel_l2 * linear[-1].weight.square().sum()                                  # D2


def train_epoch(fed, model, optimizer, data, keys, batch_size, kernel_l2):
    """Trains `model` in place, in one pass over `data`; `keys` name the random numbers of it."""
    model.train()                        # `shuffled` augments with --augment
    for rows, batch in shuffled(fed, data.images, keys, epochs=1, batch_size=batch_size):
        loss = F.cross_entropy(forward(fed, model, batch), data.labels[rows])
        loss = loss + penalty(model, kernel_l2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train_until_converged(fed, model, optimizer, data, validation, keys, epochs, batch_size,
                          kernel_l2, min_delta, patience):
    """Trains `model` in place, in at most `epochs` passes over `data`; the last weights are kept.

    It stops when the accuracy on `validation` has not grown by min_delta for `patience` epochs;
    without a validation set it makes all passes.
    """
    best = Best()
    for epoch in range(1, epochs + 1):
        train_epoch(fed, model, optimizer, data, (*keys, epoch), batch_size, kernel_l2)
        if validation is not None:
            logits = predict_logits(fed, model, validation.images)           # in eval mode, clean
            best = best_of(best, accuracy(logits, validation.labels), epoch, min_delta)       # D1
            if epoch - best.when >= patience:
                break


def learn_public(fed, i, epochs, batch_size, lr, kernel_l2, early_stopping, min_delta,
                 optimizer_name, weight_decay):
    """Client i's state_dict after training on the public images: the first stage."""
    model = fed.client_model(i, init=i)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    rows = torch.from_numpy(stream(fed.seed, "transfer").permutation(len(fed.public.labels)))
    held_out = len(rows) // 10 if early_stopping else 0
    validation_rows, rows = rows.to(fed.device).tensor_split([held_out])
    validation = pick(fed.public, validation_rows) if held_out else None
    train_until_converged(fed, model, optimizer, pick(fed.public, rows), validation,
                          ("transfer public", i), epochs, batch_size, kernel_l2, min_delta,
                          PUBLIC_PATIENCE)
    return model.state_dict()


def learn_private(fed, i, model_state, epochs, batch_size, lr, kernel_l2, early_stopping,
                  optimizer_name, weight_decay):
    """Client i's state_dict after training on its own images: the second stage."""
    model = fed.client_model(i)
    model.load_state_dict(model_state)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    validation = fed.validation if early_stopping else None
    train_until_converged(fed, model, optimizer, fed.private[i], validation,
                          ("transfer local", i), epochs, batch_size, kernel_l2, PRIVATE_MIN_DELTA,
                          PRIVATE_PATIENCE)
    return model.state_dict()


def transfer(fed, public_epochs, public_batch_size, local_epochs, batch_size, lr, kernel_l2,
             early_stopping, min_delta, optimizer_name, weight_decay):
    """All clients' state_dicts after the first stage, and after the second: two lists [M]."""
    def learn_public_images(i):
        return learn_public(fed, i, public_epochs, public_batch_size, lr, kernel_l2,
                            early_stopping, min_delta, optimizer_name, weight_decay)

    def learn_own_images(i):
        return learn_private(fed, i, after_public[i], local_epochs, batch_size, lr, kernel_l2,
                             early_stopping, optimizer_name, weight_decay)

    ids = range(len(fed.private))
    after_public = in_parallel(fed, learn_public_images, ids)
    after_private = in_parallel(fed, learn_own_images, ids)
    return after_public, after_private
